"""Analyses of a trained model that the report and the benchmark share."""
