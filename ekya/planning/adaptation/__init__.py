"""Choice of training data and serving model: drift, pooled labels, kept models, the shadow gate."""
