"""Scheduling of trainings over several servers: place, time and resources (Deep-Edge, ANDREAS, Okita)."""
