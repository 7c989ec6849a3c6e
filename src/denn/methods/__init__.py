"""DENN and its parts: classifier, neighbours, views, and thresholds of labels added later."""
