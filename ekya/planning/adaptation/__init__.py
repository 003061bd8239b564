"""What a stream learns from, and which model serves: drift, pooled labels, kept models, the shadow gate."""
