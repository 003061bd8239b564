"""What enforces a share of a GPU, and says what was really used (DESIGN §6)."""
