"""Experiments: (corpus × recipe × seed) → one JSON file each → tables and figures beside the paper's."""
