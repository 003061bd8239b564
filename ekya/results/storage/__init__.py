"""Files of a run: journal, folder, state, tables and traces."""
