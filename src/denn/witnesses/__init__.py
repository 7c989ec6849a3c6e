"""Witnesses: each scores the labels of texts in its own way."""
