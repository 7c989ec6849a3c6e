"""Tests of the other systems, and of what every method must do."""
