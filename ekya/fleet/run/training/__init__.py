"""Trainings on other servers."""
