"""Predict, embed and score many texts in partitions: in this process, or on the workers of a Ray cluster."""
