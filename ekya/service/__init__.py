"""A fleet as a service: runs until stopped, is changed while it runs, and keeps bounded state."""
