"""Trainings that are spread over several Ray nodes."""
