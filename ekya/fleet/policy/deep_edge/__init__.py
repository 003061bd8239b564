"""Deep-Edge: one training over unequal machines, whose background applications keep their deadlines."""
