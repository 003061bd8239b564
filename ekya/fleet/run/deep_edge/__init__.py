"""Deep-Edge's manager on real machines."""
