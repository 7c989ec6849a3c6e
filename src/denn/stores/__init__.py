"""Datastores: documents with labels and embeddings, kept durably and searched for the nearest."""
