"""Tests of the training loop, its checkpoints and the start of the head."""
