"""Schedulers that divide GPU shares among streams, and the objective that they maximise."""
