"""Names of things. Identities are typed values; nothing ever parses them."""

from typing import NewType

StreamId = NewType("StreamId", str)
"""One camera and its edge model, for example ``cam-2``."""

JobId = NewType("JobId", int)
"""One retraining, numbered in the order in which the run started them."""

ModelVersion = NewType("ModelVersion", int)
"""A stream's models, numbered from 0, the base model it began with."""

BASE_VERSION = ModelVersion(0)
"""The version of the model that a stream begins with."""

FIRST_JOB = JobId(1)
"""The number of a run's first retraining."""
