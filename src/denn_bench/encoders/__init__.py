"""Words with vectors, and recurrent layers over them: what the systems before BERT read."""
