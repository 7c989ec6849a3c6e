"""The other systems of the paper, one file each, and shared code."""
