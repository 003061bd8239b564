"""Preparation of a window: the order of its steps, and what it is worth."""
