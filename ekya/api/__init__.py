"""Python interface: what ``import ekya`` offers, and what the command line is written on."""
