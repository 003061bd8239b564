"""What is known of a stream before the run begins."""

from collections.abc import Mapping
from dataclasses import dataclass

from ekya.workers.settings import PreparationSettings


@dataclass(frozen=True, slots=True)
class Ready:
    """A stream that can begin.

    Attributes:
        settings: of it.
        frame_gpu_s: GPU-seconds to analyse a typical frame, per resolution, as just measured.
    """

    settings: PreparationSettings
    frame_gpu_s: Mapping[int, float]
