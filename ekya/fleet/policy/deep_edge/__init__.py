"""Deep-Edge: splits a training over heterogeneous machines whose background applications have deadlines."""
