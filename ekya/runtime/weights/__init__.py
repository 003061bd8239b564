"""Weights between trainers and inference."""
