"""Models: edge models, golden models and training."""
