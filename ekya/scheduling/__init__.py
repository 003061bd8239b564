"""Who gets how much of the GPUs, and for what: one objective, and schedulers that raise it."""
