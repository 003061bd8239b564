"""Results of γ in past windows."""

from dataclasses import dataclass, replace

from ekya.core.configs import RetrainConfig

MEMORY_WINDOWS = 6
"""Number of latest windows whose observations are kept, since scenes change."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One γ in one past window.

    Attributes:
        window: index of the window.
        config: γ.
        gain: accuracy after minus before: measured where it was retrained, else as profiled.
        gpu_s: GPU-seconds at 100% of one GPU that it took, or was expected to take.
        predicted_gain: what was promised, where the gain was measured; else None.
        validation_crops: labels behind a measured gain.
        elsewhere: it was retrained on other servers, so its GPU-seconds were not spent here.
        before: accuracy before on the labels of a measured gain; None where it was not measured.
    """

    window: int
    config: RetrainConfig
    gain: float
    gpu_s: float
    predicted_gain: float | None = None
    validation_crops: int = 0
    elsewhere: bool = False
    before: float | None = None


@dataclass(frozen=True, slots=True)
class ProfileHistory:
    """Past observations of one stream, or of several that share them.

    Attributes:
        observations: in the order in which they came.
    """

    observations: tuple[Observation, ...] = ()

    def with_observation(self, observation: Observation) -> "ProfileHistory":
        """Returns this history with one more observation, and without those that are too old.

        It replaces an earlier one of the same γ and window: what was measured replaces what was profiled.
        """
        same = (observation.window, observation.config)
        kept = (*(o for o in self.observations if (o.window, o.config) != same), observation)
        newest = max(o.window for o in kept)
        return replace(self, observations=tuple(o for o in kept if o.window > newest - MEMORY_WINDOWS))

    def with_comparison(self, before: float, after: float, objects: int) -> "ProfileHistory":
        """Returns this history with the newest retraining measured again, on labels that came after it.

        Its own validation labels have chosen its best epoch; these have not.
        """
        if not self.observations or self.observations[-1].before is None:
            return self
        *earlier, newest = self.observations
        again = replace(newest, before=before, gain=after - before, validation_crops=objects)
        return replace(self, observations=(*earlier, again))
