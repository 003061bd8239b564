"""The worlds on virtual time: emulated, which really trains and infers, and trace, which looks it up."""
