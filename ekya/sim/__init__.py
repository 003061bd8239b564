"""The emulated world: real training and real inference on virtual time."""
