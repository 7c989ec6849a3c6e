"""The shared datastore: PostgreSQL with pgvector."""
