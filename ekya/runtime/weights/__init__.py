"""Weights between trainers, inference and the zoo."""
