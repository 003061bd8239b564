"""Shares of jobs in their processes, and of GPU memory."""
