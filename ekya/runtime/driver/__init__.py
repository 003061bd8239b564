"""The driver of a live run: executor, creation of actors, operators' changes, start and resumption."""
