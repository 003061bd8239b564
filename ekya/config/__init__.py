"""The fleet file: its schema, defaults, setup and shipped files."""
