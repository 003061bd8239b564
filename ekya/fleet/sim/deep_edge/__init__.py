"""Deep-Edge's world: a TX2, three Nanos, and the laws that its manager can only measure."""
