"""Checks that a device computes correctly with fewer bits or on fewer multiprocessors."""
