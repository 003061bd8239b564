"""Combines the local scheduler's plan with retrainings on other servers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ekya.control.protocols import Planner
from ekya.core.configs import RetrainConfig
from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.units import StreamId
from ekya.core.view import WindowView
from ekya.core.weights import Elsewhere


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


def _left_alone(assignment: Assignment) -> Assignment:
    return replace(assignment, retrain=None, elsewhere=None)
