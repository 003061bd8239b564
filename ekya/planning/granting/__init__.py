"""A plan at the shares that were granted, and what is left over."""
