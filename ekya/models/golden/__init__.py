"""Golden models that label, detectors that find objects, and the classes of both."""
