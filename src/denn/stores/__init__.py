"""Datastores: documents with labels and embeddings, kept durably and searched exactly."""
