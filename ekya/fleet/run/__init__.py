"""Execution of a fleet's decisions."""
