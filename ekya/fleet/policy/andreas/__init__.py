"""ANDREAS: jobs on the GPUs of unequal nodes, by what energy costs and by what being late costs."""
