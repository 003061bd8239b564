"""What a stream's frames really take, as they are analysed."""

from ekya.core.configs import InferenceConfig

NEWEST_PART = 0.3
"""What the newest measurement counts: a street stays as full, and neighbours as busy, for a while."""


class FrameCosts:
    """Counts the frames of a stream between two measurements, and what one takes by now, per resolution.

    Not for several threads.
    """

    def __init__(self) -> None:
        """Nothing is analysed yet."""
        self._gpu_s: dict[int, float] = {}
        self._frames = 0
        self._configs: dict[int, InferenceConfig] = {}

    def count(self, config: InferenceConfig) -> None:
        """A frame was analysed at this λ."""
        self._frames += 1
        self._configs[config.resolution] = config

    def since_told(self, used_gpu_s: float) -> tuple[InferenceConfig, float] | None:
        """The newest λ, and the GPU-seconds that a frame takes at it.

        Of frames at several resolutions, or of none, nothing can be said.

        Args:
            used_gpu_s: on all frames since this was last called, at 100% of one GPU.
        """
        frames, configs = self._frames, self._configs
        self._frames, self._configs = 0, {}
        if len(configs) != 1 or used_gpu_s <= 0.0:
            return None
        (config,) = configs.values()
        newest = used_gpu_s / frames
        before = self._gpu_s.get(config.resolution, newest)
        self._gpu_s[config.resolution] = before + NEWEST_PART * (newest - before)
        return config, self._gpu_s[config.resolution]
