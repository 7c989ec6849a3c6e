"""The HTTP service: denn's API, Annif's API and a web page; see `app.make_app`."""
