"""Simulation of a fleet on virtual time."""
