"""Profiles of a machine's speeds under load (Deep-Edge §IV.B.1)."""
