"""Placement: rounds the shares of a plan to ones that the GPUs can give, and packs them."""
