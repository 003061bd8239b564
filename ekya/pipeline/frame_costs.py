"""Costs and counts of a stream's frames, updated as they are analysed."""

from ekya.core.configs import InferenceConfig
from ekya.core.records import FramePrediction
from ekya.core.speed import SpeedCurve
from ekya.core.units import US_PER_S
from ekya.planning.profiling.inference_profile import used_milli
from ekya.results.metrics.health import FrameCount

NEWEST_PART = 0.3
"""Weight of the newest measurement: the crowd and the load of neighbours persist for a while."""

KEPT_PART = 0.95
"""A stream that analyses at least this part of the frames that λ intends keeps up."""

MOST_SHORTFALL = 1.5
"""Upper bound on the shortfall of one measurement: λ coarser by this factor leave time to measure again."""


class FrameCosts:
    """Measures the cost of a stream's analysed frames per resolution, between two reports.

    A λ of the golden detector is measured by itself: following its boxes into the frames between is part of
    the cost.

    Where cores do the models' work, and other programs or decoding occupy them, a share delivers less than
    its nominal part: frames are dropped although they fit. The cost of a frame is scaled up by the part that
    was dropped, until none are. On a GPU a late frame says nothing of the GPU's work. Not thread-safe.
    """

    def __init__(self, fps: float, speed: SpeedCurve, *, on_cores: bool = True) -> None:
        """Starts without frames.

        Args:
            fps: frames a second of the camera.
            speed: of inference at a share.
            on_cores: whether shares are of cores.
        """
        self._on_cores = on_cores
        self._fps, self._speed = fps, speed
        self._gpu_s: dict[InferenceConfig, float] = {}
        self._frames = self._found = self._due = 0
        self._shortfall = 1.0
        self._configs: dict[InferenceConfig, InferenceConfig] = {}

    def add(self, row: FramePrediction) -> None:
        """Counts a frame, analysed or not."""
        self._due += int(row.frame % row.every == 0)
        if row.analysed:
            self._frames += 1
            config = InferenceConfig(row.every, row.resolution)
            self._configs[self._measured_alike(config)] = config

    def count_found(self) -> None:
        """Counts a frame whose objects were found for the golden model, without being analysed."""
        self._found += 1

    def measure(self, used_us: int, held_milli: int) -> tuple[InferenceConfig, int] | None:
        """Returns the newest λ and the share that it needs to analyse all of its frames.

        None after frames of several costs, or no analysed frame.

        Args:
            used_us: GPU time of all frames since the last call.
            held_milli: the share at which it was used.
        """
        # A frame of which only the objects were found counts fully: finding them is most of the cost.
        frames, configs = self._frames + self._found, self._configs
        self._measure_shortfall()
        self._frames = self._found = self._due = 0
        self._configs = {}
        used_gpu_s = self._speed.whole_gpu_time(used_us, held_milli) / US_PER_S
        if len(configs) != 1 or used_gpu_s <= 0.0:
            return None
        (config,) = configs.values()
        newest = used_gpu_s / frames
        alike = self._measured_alike(config)
        before = self._gpu_s.get(alike, newest)
        self._gpu_s[alike] = before + NEWEST_PART * (newest - before)
        frame_gpu_s = self._gpu_s[alike] * self._shortfall
        return config, used_milli(config, frame_gpu_s, self._fps, self._speed)

    def _measured_alike(self, config: InferenceConfig) -> InferenceConfig:
        """Returns the λ that stands for all whose analysed frames cost the same."""
        return config if config.by_golden else InferenceConfig(1, config.resolution)

    def _measure_shortfall(self) -> None:
        """Updates the shortfall: it rises immediately and decays slowly, or drops would oscillate."""
        kept_up = self._frames >= KEPT_PART * self._due
        newest = (
            1.0 if kept_up or not self._on_cores else min(self._due / max(self._frames, 1), MOST_SHORTFALL)
        )
        fading = self._shortfall + NEWEST_PART * (newest - self._shortfall)
        self._shortfall = max(newest, fading)


class FrameTally:
    """Counts the frames of one window at a time. Not thread-safe."""

    def __init__(self) -> None:
        self._window = 0
        self._count = FrameCount()

    def add(self, row: FramePrediction, gpu_is_late: bool = False) -> tuple[int, FrameCount] | None:
        """Counts a frame; at the first of a window, returns the unreported count of the one before.

        Args:
            row: of the frame.
            gpu_is_late: whether the GPU, and not the host, is what a frame now waits for.
        """
        ended = self.drain_counts() if row.window != self._window else None
        self._window = row.window
        due = row.frame % row.every == 0
        late_gpu = due and gpu_is_late and not row.analysed
        self._count += FrameCount(int(due), int(row.analysed), int(late_gpu))
        return ended

    def drain_counts(self) -> tuple[int, FrameCount] | None:
        """Returns a window and its frames since the last call; None if there were none."""
        count, self._count = self._count, FrameCount()
        return (self._window, count) if count != FrameCount() else None
