"""Choice of the frames on which a run of unlabelled video is scored."""

from enum import StrEnum


class Scoring(StrEnum):
    """Frames on which a run of unlabelled video is scored."""

    SAMPLE = "sample"
    """As many as the golden model labels in a small part of the run's length, drawn from each window."""

    ALL = "all"
