"""Trainings on several Ray nodes."""
