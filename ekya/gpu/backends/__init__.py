"""Share backends: enforce each job's share of a GPU and measure its actual use."""
