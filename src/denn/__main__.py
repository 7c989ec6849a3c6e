"""`python -m denn` is the command line."""

from denn.cli import main

main()
