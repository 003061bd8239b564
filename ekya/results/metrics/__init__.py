"""Measures a run from its records: accuracy, shares, counts, energy and health."""
