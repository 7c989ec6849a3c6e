"""The other systems of the paper, one file each, and what they share."""
