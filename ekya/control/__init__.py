"""The control loop: drains events, applies them, plans once, and issues the fewest commands."""
