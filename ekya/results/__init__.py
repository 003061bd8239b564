"""Results of a run: what it stores, measures and reports."""
