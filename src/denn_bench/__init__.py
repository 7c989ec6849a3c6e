"""Reproduction of the paper: its other systems, and experiments → JSON files → tables and figures."""

import denn as denn  # before torch, which reads the environment variables set here
