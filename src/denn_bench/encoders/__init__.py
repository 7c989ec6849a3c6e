"""Word vectors and recurrent layers for the systems before BERT."""
