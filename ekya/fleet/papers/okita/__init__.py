"""Okita's world: sites with data of their own, and jobs with a parameter server each."""
