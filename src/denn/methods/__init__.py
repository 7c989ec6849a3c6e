"""DENN and its parts: classifier, neighbours, views, thresholds of labels that came later."""
