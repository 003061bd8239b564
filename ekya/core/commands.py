"""Commands of the loop. An executor carries them out and reports their effects as events.

Commands that result from a plan carry its number, ``plan_epoch``; 0 where no plan was made.
A step of the loop is recorded with its events, plan and commands.
"""

from dataclasses import dataclass, replace

from ekya.core.areas import Areas
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.events import Event, Role
from ekya.core.plan import Plan
from ekya.core.profile import Family
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.core.weights import Elsewhere, LabelBudget, SceneOf


@dataclass(frozen=True, slots=True)
class PrepareStream:
    """Profiling work for one stream before the plan.

    Attributes:
        inference: λ to profile; empty for none.
        families: families of γ to micro-profile, the most promising first.
        since_us: stream time of a drift; labels are drawn from frames since then, and not from the window
            before. None for the window's own preparation.
        scenes: streams whose labels since then are tried beside its newest ones: itself, and those that
            drifted together with it.
        labels: whether it is labelled at all.
        inference_first: λ are profiled before anything is labelled, or nothing is.
    """

    stream: StreamId
    inference: tuple[InferenceConfig, ...]
    families: tuple[Family, ...]
    since_us: int | None = None
    scenes: tuple[SceneOf, ...] = ()
    labels: bool = True
    inference_first: bool = False


@dataclass(frozen=True, slots=True)
class BeginPreparation:
    """Label, micro-profile γ and profile λ, in the order of ``planning.preparation.steps``.

    GPU-seconds of trials, like those of retrainings, are converted by ``training_speed``.

    Attributes:
        round: number within the window: 0 is the window's own preparation, the others answer drifts.
        budget: of the labels of each stream, where it has changed since the run began.
    """

    window: int
    share_milli: int
    streams: tuple[PrepareStream, ...]
    plan_epoch: int = 0
    training_speed: SpeedCurve = LINEAR
    round: int = 0
    budget: LabelBudget | None = None


@dataclass(frozen=True, slots=True)
class EndPreparation:
    """Stop the unfinished rest of the preparation, which is named as in its command."""

    window: int
    round: int = 0


@dataclass(frozen=True, slots=True)
class SetInference:
    """Analyse a stream with this λ at this share from now on."""

    stream: StreamId
    config: InferenceConfig
    share_milli: int
    plan_epoch: int = 0


@dataclass(frozen=True, slots=True)
class SetAreas:
    """Objects of a stream count here only, from its next frame on."""

    stream: StreamId
    areas: Areas


@dataclass(frozen=True, slots=True)
class StartRetraining:
    """Retrain the serving model of a stream on the labels of a window's preparation.

    ``expected_accuracy``, ``expected_gpu_s`` and ``early_part`` are the plan's estimates. With ``elsewhere``
    nothing is trained here: all weights have arrived at its time, and their accuracies are reported as they
    arrive; in a live run only other servers send them. GPU-seconds are converted by ``training_speed``, the
    curve with which the window is planned.
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
    """Give a running retraining another share, without a restart."""

    stream: StreamId
    job: JobId
    share_milli: int
    plan_epoch: int = 0


@dataclass(frozen=True, slots=True)
class ServeModel:
    """Serve a retraining's best weights so far (paper §5)."""

    stream: StreamId
    job: JobId
    epoch: int


@dataclass(frozen=True, slots=True)
class KeepServing:
    """Do not serve the best weights of a finished retraining, since the shadow gate has refused them."""

    stream: StreamId
    job: JobId
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class RollBack:
    """Serve earlier weights again.

    Attributes:
        reason: in one sentence.
        version: of the weights; None for those that served when labels were taken before, which do better on
            the newest.
    """

    stream: StreamId
    reason: str
    version: ModelVersion | None = None


@dataclass(frozen=True, slots=True)
class StopRetraining:
    """End a retraining. Follows its ServeModel or KeepServing, if there is one."""

    stream: StreamId
    job: JobId


@dataclass(frozen=True, slots=True)
class RestartWorker:
    """Restart a dead worker with the last weights that served."""

    stream: StreamId
    role: Role


@dataclass(frozen=True, slots=True)
class SetAside:
    """Give up on a stream; the others continue."""

    stream: StreamId
    reason: str


@dataclass(frozen=True, slots=True)
class StartAgain:
    """End the service in order and start it again, with the fleet as its file says now.

    Attributes:
        reason: in one sentence.
    """

    reason: str


Command = (
    BeginPreparation
    | EndPreparation
    | SetInference
    | SetAreas
    | StartRetraining
    | ResizeRetraining
    | ServeModel
    | KeepServing
    | RollBack
    | StopRetraining
    | RestartWorker
    | SetAside
    | StartAgain
)


def of_plan(command: Command, plan_epoch: int) -> Command:
    """Returns the command with its plan's number; unchanged where its type has none."""
    match command:
        case BeginPreparation() | SetInference() | StartRetraining() | ResizeRetraining():
            return replace(command, plan_epoch=plan_epoch)
        case _:
            return command


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Events, plan and commands of one step.

    Attributes:
        now_us: run time of the step.
        events: in the order of arrival.
        plan: None where no event required a plan.
        commands: in their order.
    """

    now_us: int
    events: tuple[Event, ...]
    plan: Plan | None
    commands: tuple[Command, ...]
