"""The emulated world: really trains and infers, on virtual time."""
