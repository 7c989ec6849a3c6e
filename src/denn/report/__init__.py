"""A report on a model's strengths and weaknesses on labelled documents, as one self-contained HTML page."""
