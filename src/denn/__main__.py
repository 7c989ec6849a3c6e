"""Run the command line with `python -m denn`."""

from denn.cli import main

main()
