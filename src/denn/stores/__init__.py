"""Datastores: store documents with labels and embeddings durably, and find the nearest ones."""
