"""Shared data types: ids, configurations, shares, events and commands."""
