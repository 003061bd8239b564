"""Worlds on virtual time: emulated, which really trains and infers, and trace, which replays a record."""
