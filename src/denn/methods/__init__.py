"""Multi-label systems: one self-contained file each."""
