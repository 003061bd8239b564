"""From the shares a plan asks for to those that the GPUs can give."""
