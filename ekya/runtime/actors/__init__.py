"""Actors of a live run, and what works in their processes."""
