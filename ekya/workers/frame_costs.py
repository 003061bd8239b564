"""What a stream's frames really take, as they are analysed."""

from ekya.core.configs import InferenceConfig
from ekya.core.records import FramePrediction
from ekya.core.speed import SpeedCurve
from ekya.core.units import US_PER_S
from ekya.profiling.inference import used_milli

NEWEST_PART = 0.3
"""What the newest measurement counts: a street stays as full, and neighbours as busy, for a while."""

KEPT_PART = 0.95
"""A stream that analyses this part of the frames that λ intends keeps up."""

MOST_SHORTFALL = 1.5
"""More is not made of one measurement: λ that are coarser by this leave time to measure again."""


class FrameCosts:
    """Counts the frames of a stream between two measurements, and what one takes by now, per resolution.

    Where other programs, or decoding, take the cores, a share gives less than it says: frames are dropped
    although they fit. By the part that was dropped the frames count as dearer, until none are any more.
    Not for several threads.
    """

    def __init__(self, fps: float, speed: SpeedCurve) -> None:
        """Nothing is analysed yet.

        Args:
            fps: frames a second of the camera.
            speed: of inference at a share.
        """
        self._fps, self._speed = fps, speed
        self._gpu_s: dict[int, float] = {}
        self._frames = self._found = self._due = 0
        self._shortfall = 1.0
        self._configs: dict[int, InferenceConfig] = {}

    def add(self, row: FramePrediction) -> None:
        """A frame came, and was analysed or not."""
        self._due += int(row.frame % row.every == 0)
        if row.analysed:
            self._frames += 1
            self._configs[row.resolution] = InferenceConfig(row.every, row.resolution)

    def count_found(self) -> None:
        """The objects of a frame were found that was not analysed: it was kept for the golden model."""
        self._found += 1

    def since_told(self, used_us: int, held_milli: int) -> tuple[InferenceConfig, int] | None:
        """The newest λ, and the share that it uses if it looks at all of its frames.

        Of frames at several resolutions, or of none, nothing can be said.

        Args:
            used_us: of the GPU on all frames since this was last called.
            held_milli: the share at which it was used.
        """
        # Where objects have to be found that is most of what a frame takes.
        frames, configs = self._frames + self._found, self._configs
        self._measure_shortfall()
        self._frames = self._found = self._due = 0
        self._configs = {}
        used_gpu_s = self._speed.worth(used_us, held_milli) / US_PER_S
        if len(configs) != 1 or used_gpu_s <= 0.0:
            return None
        (config,) = configs.values()
        newest = used_gpu_s / frames
        before = self._gpu_s.get(config.resolution, newest)
        self._gpu_s[config.resolution] = before + NEWEST_PART * (newest - before)
        frame_gpu_s = self._gpu_s[config.resolution] * self._shortfall
        return config, used_milli(config, frame_gpu_s, self._fps, self._speed)

    def _measure_shortfall(self) -> None:
        """Grows at once and shrinks slowly, or frames would be dropped every other time."""
        kept_up = self._frames >= KEPT_PART * self._due
        newest = 1.0 if kept_up else min(self._due / max(self._frames, 1), MOST_SHORTFALL)
        fading = self._shortfall + NEWEST_PART * (newest - self._shortfall)
        self._shortfall = max(newest, fading)
