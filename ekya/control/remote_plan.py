"""Combines the local scheduler's plan with retrainings and inference on other servers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ekya.control.protocols import Planner
from ekya.core.configs import RetrainConfig
from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.speed import SpeedCurve
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, WindowView
from ekya.core.weights import Elsewhere
from ekya.planning.schedulers.objective import analysed_part


@dataclass(frozen=True, slots=True)
class RemoteRetraining:
    """A retraining on other servers, as in the plan of its stream's server.

    Attributes:
        config: γ.
        elsewhere: arrival of its weights.
        reason: one sentence that an operator can read.
    """

    config: RetrainConfig
    elsewhere: Elsewhere
    reason: str


def plan_beside(view: WindowView, planner: Planner, remote: Mapping[StreamId, RemoteRetraining]) -> Plan:
    """Returns the plan of a scheduler that knows no other server, with remote retrainings inserted."""
    own = own_part(view)
    for stream in remote:
        own = without_retraining(own, stream)
    plan = planner(own)

    def changed(assignment: Assignment) -> Assignment:
        found = remote.get(assignment.stream)
        if found is None:
            return assignment
        return replace(assignment, retrain=found.config, elsewhere=found.elsewhere, reason=found.reason)

    return replace(
        plan, phases=tuple(Phase(tuple(changed(one) for one in phase.assignments)) for phase in plan.phases)
    )


def remote_retrainings(plan: Plan) -> dict[StreamId, RemoteRetraining]:
    """Returns the remote retrainings of an existing plan."""
    return {
        one.stream: RemoteRetraining(one.retrain, one.elsewhere, one.reason)
        for one in plan.phases[0].assignments
        if one.retrain is not None and one.elsewhere is not None
    }


def running_remotely(view: WindowView) -> dict[StreamId, RemoteRetraining]:
    """Returns the remote retrainings in progress."""
    return {
        stream.stream: RemoteRetraining(
            running.option.config, running.elsewhere, "retrains on another server"
        )
        for stream in view.streams
        if (running := stream.running) is not None and running.elsewhere is not None
    }


def own_part(view: WindowView) -> WindowView:
    """Returns the view without remote retrainings, for a scheduler that knows no other server."""
    return replace(
        view,
        streams=tuple(
            replace(stream, running=None, retrain_options=())
            if stream.running is not None and stream.running.elsewhere is not None
            else stream
            for stream in view.streams
        ),
        previous=tuple(
            Phase(tuple(_left_alone(one) if one.elsewhere else one for one in phase.assignments))
            for phase in view.previous
        ),
    )


def without_retraining(view: WindowView, stream: StreamId) -> WindowView:
    """Returns the view with no retraining options for one stream."""
    streams = tuple(replace(one, retrain_options=()) if one.stream == stream else one for one in view.streams)
    return replace(view, streams=streams)


def classified_elsewhere(
    options: tuple[InferenceOption, ...], share_milli: int, away_us: int, speed: SpeedCurve
) -> tuple[InferenceOption, ...]:
    """Returns Λ of a stream whose frames another server classifies: those that keep up with the share there.

    If none does, it is the least demanding one, as accurate as the share allows. Here they need next to
    nothing, but not nothing: at share 0 no frame is analysed.

    Args:
        options: as they are here.
        share_milli: of the other server.
        away_us: time that the crops of a frame and their answer are on the way.
        speed: of inference at a share.
    """
    fitting = [one for one in options if one.share_needed_milli <= share_milli]
    return tuple(
        replace(
            one,
            relative_accuracy=analysed_part(one, share_milli, speed),
            share_needed_milli=1,
            age_us=one.age_us + away_us,
            ample_milli=0,
        )
        for one in fitting or [min(options, key=lambda one: one.share_needed_milli)]
    )


def _left_alone(assignment: Assignment) -> Assignment:
    return replace(assignment, retrain=None, elsewhere=None)
