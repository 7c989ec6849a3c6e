"""A report on any model: what it does well and badly on labelled documents, as one self-contained HTML page."""
