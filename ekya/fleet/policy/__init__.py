"""Who decides for a fleet, purely: a view in, assignments with their reasons out."""
