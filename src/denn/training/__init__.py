"""Training: one loop for every method that learns by gradients."""
