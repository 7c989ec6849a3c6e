"""Text encoders and where their weights come from."""
