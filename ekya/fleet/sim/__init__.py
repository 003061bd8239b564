"""A fleet on virtual time."""
