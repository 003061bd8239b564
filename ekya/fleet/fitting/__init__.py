"""Models of a fleet's machines, learned from measurements; what is kept are those, never the models."""
