"""Reproduces the papers' figures: workloads, physics, baselines, optima, and the worlds made of them."""
