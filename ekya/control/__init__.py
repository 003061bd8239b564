"""The loop: drain events, apply them, plan once, and ask for the fewest commands."""
