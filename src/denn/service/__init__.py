"""The HTTP service: an API, Annif's API beside it, and one page; see `app.make_app`."""
