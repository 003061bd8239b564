"""Several servers on the wall clock: each is an actor on a separate Ray node, with Ekya inside."""
