"""Fleet policies as pure functions: a view in, assignments with their reasons out."""
