"""More than one server: which training runs where, when and on how much (Deep-Edge, ANDREAS, Okita)."""
