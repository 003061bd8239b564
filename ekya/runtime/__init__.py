"""The live world: Ray actors on real shares, and the wall clock."""
