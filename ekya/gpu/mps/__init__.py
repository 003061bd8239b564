"""Shares under CUDA's multi-process service (MPS)."""
