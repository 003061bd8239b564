"""Whether a device computes rightly: asked before fewer bits or fewer multiprocessors are trusted."""
