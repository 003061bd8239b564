"""A synthetic city: rendered streets whose truth is known and whose drift is scripted (paper §2.3)."""
