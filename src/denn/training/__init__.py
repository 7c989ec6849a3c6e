"""Training: networks, and one loop for every method that learns by gradient descent."""
