"""Choice of training data and serving model: drift, pooled labels, the shadow gate."""
