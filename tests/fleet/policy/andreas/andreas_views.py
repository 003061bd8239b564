"""Small scheduling points for policies."""

from hypothesis import strategies as st

from ekya.fleet.policy.assignment import JobAssignment, NodePart
from ekya.fleet.policy.job import Left, Tardiness, TrainJob
from ekya.fleet.policy.places import JobName, Node, NodeName, Places, SiteName
from ekya.fleet.policy.view import FleetView, JobState

S = 1_000_000
SITE = SiteName("here")
SCALING = 0.65


def node(name, kind, gpus, base=100.0, each=None):
    each = {"fast": 230.0, "slow": 65.0}[kind] if each is None else each
    return Node(NodeName(name), SITE, kind, gpus, (0.0, *[base + each * used for used in range(1, gpus + 1)]))


def places(*nodes):
    return Places({one.name: one for one in nodes}, kwh_cost=0.172, pue=1.33)


def job(name, epochs=10, epoch_s=60.0, due_s=1000.0, weight=2e-4, slower=1.8, only=None, arrives_s=0):
    epoch_us = {
        (kind, gpus): round(epoch_s * factor / gpus**SCALING * S)
        for kind, factor in (("fast", 1.0), ("slow", slower))
        if only in (None, kind)
        for gpus in range(1, 5)
    }
    return TrainJob(
        JobName(name),
        arrives_s * S,
        epochs,
        Tardiness(due_s, weight),
        epoch_us=epoch_us,
    )


def state(one, left=None, on=None):
    part = None if on is None else JobAssignment(one.name, (NodePart(NodeName(on[0]), on[1]),), "it was so")
    return JobState(one, Left(left or one.epochs, {}), part)


def view(states, where, now_s=0, seed=0):
    return FleetView(now_s * S, tuple(states), where, seed)


def given(decision):
    """Returns node and GPUs of each running job."""
    return {one.job: (one.parts[0].node, one.parts[0].gpus) for one in decision.assignments}


@st.composite
def views(draw, most_jobs=7):
    """Views with any nodes, and with waiting and running jobs."""
    kinds = st.tuples(st.sampled_from(["fast", "slow"]), st.integers(1, 3))
    nodes = [
        node(f"n{place}", *one) for place, one in enumerate(draw(st.lists(kinds, min_size=1, max_size=3)))
    ]
    free, kind_of = {one.name: one.gpus for one in nodes}, {one.name: one.kind for one in nodes}
    states = []
    for place in range(draw(st.integers(1, most_jobs))):
        only = nodes[0].kind if draw(st.integers(0, 5)) == 0 else None
        one = job(
            f"j{place}",
            draw(st.integers(1, 30)),
            draw(st.sampled_from([20.0, 60.0, 240.0])),
            draw(st.integers(1, 8000)),
            draw(st.sampled_from([1e-4, 2e-4, 5e-4])),
            only=only,
        )
        on = draw(st.sampled_from([None, *[name for name, left in free.items() if left]]))
        if on is not None and only in (None, kind_of[on]):
            gpus = draw(st.integers(1, free[on]))
            free[on] -= gpus
            states.append(state(one, on=(on, gpus)))
        else:
            states.append(state(one))
    return view(states, places(*nodes), draw(st.integers(0, 2000)), draw(st.integers(0, 3)))
