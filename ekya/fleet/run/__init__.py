"""What carries a fleet's decisions out."""
