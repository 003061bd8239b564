"""What the loop asks for. An executor carries it out, and what comes of it returns as events.

Commands that come of a plan carry its number, ``plan_epoch``; 0 where none was made.
"""

from dataclasses import dataclass, replace

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.elsewhere import Elsewhere
from ekya.core.events import Role
from ekya.core.ids import JobId, StreamId
from ekya.core.profile import Family
from ekya.core.speed import LINEAR, SpeedCurve


@dataclass(frozen=True, slots=True)
class PrepareStream:
    """What to measure for one stream before the plan.

    Attributes:
        inference: λ to profile; empty for none.
        families: families of γ to micro-profile, in the order in which they are worth it.
    """

    stream: StreamId
    inference: tuple[InferenceConfig, ...]
    families: tuple[Family, ...]


@dataclass(frozen=True, slots=True)
class BeginPreparation:
    """Label, micro-profile γ and profile λ, in the order of ``profiling.steps``.

    What trials took is told by ``training_speed``, as what retrainings take.
    """

    window: int
    share_milli: int
    streams: tuple[PrepareStream, ...]
    plan_epoch: int = 0
    training_speed: SpeedCurve = LINEAR


@dataclass(frozen=True, slots=True)
class EndPreparation:
    """Stop what is left of the preparation; its time is up."""

    window: int


@dataclass(frozen=True, slots=True)
class SetInference:
    """Analyse a stream with this λ at this share from now on."""

    stream: StreamId
    config: InferenceConfig
    share_milli: int
    plan_epoch: int = 0


@dataclass(frozen=True, slots=True)
class StartRetraining:
    """Retrain the serving model of a stream on the labels of a window's preparation.

    ``expected_accuracy``, ``expected_gpu_s`` and ``early_part`` are what the plan counts on. With
    ``elsewhere`` nothing is trained here: all weights are here when that says, and how good they are is told
    as they come; in a live run only other servers send them. GPU-seconds are told by ``training_speed``, the
    curve that its window is planned with.
    """

    stream: StreamId
    job: JobId
    window: int
    config: RetrainConfig
    share_milli: int
    expected_accuracy: float
    expected_gpu_s: float
    elsewhere: Elsewhere | None = None
    early_part: float = 0.0
    plan_epoch: int = 0
    training_speed: SpeedCurve = LINEAR


@dataclass(frozen=True, slots=True)
class ResizeRetraining:
    """Give a running retraining another share; it goes on where it is."""

    stream: StreamId
    job: JobId
    share_milli: int
    plan_epoch: int = 0


@dataclass(frozen=True, slots=True)
class ServeModel:
    """Serve the best weights that a retraining has reached so far (paper §5)."""

    stream: StreamId
    job: JobId
    epoch: int


@dataclass(frozen=True, slots=True)
class KeepServing:
    """Do not serve the best weights of a retraining that is over: the shadow gate has refused them."""

    stream: StreamId
    job: JobId
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class RollBack:
    """Serve the weights again that served when labels were taken before: on the newest they do better."""

    stream: StreamId
    reason: str


@dataclass(frozen=True, slots=True)
class StopRetraining:
    """End a retraining. Comes after the ServeModel or KeepServing that may go with it."""

    stream: StreamId
    job: JobId


@dataclass(frozen=True, slots=True)
class RestartWorker:
    """Start a dead worker again, with the last weights that served."""

    stream: StreamId
    role: Role


@dataclass(frozen=True, slots=True)
class SetAside:
    """Give up on a stream; the others go on."""

    stream: StreamId
    reason: str


Command = (
    BeginPreparation
    | EndPreparation
    | SetInference
    | StartRetraining
    | ResizeRetraining
    | ServeModel
    | KeepServing
    | RollBack
    | StopRetraining
    | RestartWorker
    | SetAside
)


def of_plan(command: Command, plan_epoch: int) -> Command:
    """The command under the number of the plan that it came of; as it is where it never comes of one."""
    match command:
        case BeginPreparation() | SetInference() | StartRetraining() | ResizeRetraining():
            return replace(command, plan_epoch=plan_epoch)
        case _:
            return command
