"""ANDREAS's world: clusters of V100 and TURING nodes, with jobs that arrive in bursts."""
