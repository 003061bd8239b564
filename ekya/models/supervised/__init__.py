"""Training of golden models and of the common base of edge models on labelled crops, once, before a run."""
