"""The reproduction of the paper: its other systems, and experiments → JSON files → tables and figures."""
