"""Reads frames: live cameras, recorded video, and the processes that decode them."""
