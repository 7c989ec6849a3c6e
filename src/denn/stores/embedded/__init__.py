"""The embedded datastore: one SQLite file, searched in memory, with an approximate index if it is large."""
