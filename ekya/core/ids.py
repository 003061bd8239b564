"""Typed ids, which are never parsed."""

from typing import NewType

StreamId = NewType("StreamId", str)
"""One camera and its edge model, for example ``cam-2``."""

JobId = NewType("JobId", int)
"""One retraining, numbered in the order of start."""

ModelVersion = NewType("ModelVersion", int)
"""Number of a stream's model, from 0, the base model with which it began."""

BASE_VERSION = ModelVersion(0)
"""The version of the model that a stream begins with."""

FIRST_JOB = JobId(1)
"""The number of a run's first retraining."""
