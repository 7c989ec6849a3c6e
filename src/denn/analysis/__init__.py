"""Analysis of a trained model: what the report and the benchmark share."""
