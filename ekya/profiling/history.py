"""Results of γ in past windows, from which pruning and the correction of estimates learn."""

from dataclasses import dataclass

from ekya.core.configs import RetrainConfig


@dataclass(frozen=True, slots=True)
class Observation:
    """One γ in one past window.

    Attributes:
        window: index of the window.
        config: γ.
        gain: accuracy after minus before: measured where it was retrained, else as profiled.
        gpu_s: GPU-seconds at 100% of one GPU that it took, or was profiled to take.
        predicted_gain: prediction of the micro-profile, where the gain was measured; else None.
    """

    window: int
    config: RetrainConfig
    gain: float
    gpu_s: float
    predicted_gain: float | None = None


@dataclass(frozen=True, slots=True)
class ProfileHistory:
    """Past observations of one stream, or of several that share them.

    Attributes:
        observations: in the order in which they came.
        memory_windows: number of latest windows that are kept, since scenes change.
    """

    observations: tuple[Observation, ...] = ()
    memory_windows: int = 6

    def with_observation(self, observation: Observation) -> "ProfileHistory":
        """Returns this history with one more observation, and without those that are too old.

        It replaces an earlier one of the same γ and window: what was measured replaces what was profiled.
        """
        same = (observation.window, observation.config)
        kept = (*(o for o in self.observations if (o.window, o.config) != same), observation)
        newest = max(o.window for o in kept)
        recent = tuple(o for o in kept if o.window > newest - self.memory_windows)
        return ProfileHistory(recent, self.memory_windows)
