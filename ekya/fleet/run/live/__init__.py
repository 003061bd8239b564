"""Several servers on the wall clock: each an actor on its own Ray node, with Ekya inside."""
