"""denn."""
