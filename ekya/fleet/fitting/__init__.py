"""Models of a fleet's machines, fitted to measurements; only the measurements are stored."""
