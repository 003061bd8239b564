"""Trains edge models: epochs, exemplars, snapshots and the micro-profiler's trainings."""
