"""Deep-Edge's world: a TX2, three Nanos, and true performance laws that policies can only estimate."""
