"""Deep-Edge's testbed: figures from the paper's text, and directions from its figures' captions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.fleet.papers.deep_edge import laws
from ekya.fleet.papers.deep_edge.devices import MEM_LIMIT, NANO, PARAMETER_SERVERS, PI, TX2, WORKERS
from ekya.fleet.policy.places import NodeState

SERVER = PARAMETER_SERVERS[PI]
CLUSTER = (TX2, NANO, NANO, NANO)


def step_s(states, which, batch=32, server_cpu=SERVER.rest.cpu):
    """Returns the step time of one worker of the cluster."""
    steps = [
        (
            batch * laws.compute_s(WORKERS[kind], state, batch),
            laws.state_after(WORKERS[kind], state, batch).cpu,
        )
        for kind, state in zip(CLUSTER, states, strict=True)
    ]
    return steps[which][0] + laws.update_s(SERVER, server_cpu, steps)[which]


IDLE = [WORKERS[kind].rest for kind in CLUSTER]


def test_a_step_takes_what_the_paper_measured_on_an_idle_cluster() -> None:
    assert step_s(IDLE, 0) == pytest.approx(1.89, abs=0.01)
    assert step_s(IDLE, 1) == pytest.approx(2.69, abs=0.01)
    assert 1 - step_s(IDLE, 0) / step_s(IDLE, 1) == pytest.approx(0.30, abs=0.01)


@pytest.mark.parametrize(("kind", "gpu", "which"), [(TX2, 0.88, 0), (NANO, 0.66, 1)])
def test_a_used_gpu_makes_it_almost_a_fifth_longer(kind, gpu, which) -> None:
    states = [
        replace(rest, gpu=gpu) if one == kind else rest for one, rest in zip(CLUSTER, IDLE, strict=True)
    ]
    assert 1.17 < step_s(states, which) / step_s(IDLE, which) < 1.20


part = st.floats(0.0, 0.9)
states = st.builds(NodeState, part, part, st.floats(0.2, 0.5))
workers = st.sampled_from([WORKERS[kind] for kind in (TX2, NANO)])
batches = st.integers(2, 31)


@given(workers, states, batches, st.floats(0.01, 0.1))
def test_a_sample_takes_longer_on_a_busier_machine_and_less_in_a_larger_batch(
    worker, state, batch, more
) -> None:
    takes_s = laws.compute_s(worker, state, batch)
    assert laws.compute_s(worker, replace(state, gpu=state.gpu + more), batch) > takes_s
    assert laws.compute_s(worker, replace(state, cpu=state.cpu + more), batch) > takes_s
    assert laws.compute_s(worker, replace(state, mem=state.mem + more), batch) == takes_s
    assert laws.compute_s(worker, state, batch + 1) < takes_s
    assert laws.compute_s(worker, state, batch, 1 - more) > takes_s


some_steps = st.lists(st.tuples(st.floats(0.3, 6.0), part), min_size=1, max_size=5)


@given(some_steps, st.floats(0.0, 0.8))
def test_an_update_takes_longer_with_more_workers_smaller_batches_and_a_busier_server(
    steps, server_cpu
) -> None:
    takes_s = laws.update_s(SERVER, server_cpu, steps)[0]
    assert laws.update_s(SERVER, server_cpu, [*steps, (2.0, 0.5)])[0] > takes_s
    larger = [(2 * computing_s, cpu) for computing_s, cpu in steps]
    assert laws.update_s(SERVER, server_cpu, larger)[0] <= takes_s + 1e-9
    assert laws.update_s(SERVER, server_cpu + 0.1, steps)[0] > takes_s


@given(workers, states, batches, st.floats(0.1, 1.0))
def test_a_training_uses_more_of_everything_and_never_more_than_there_is(worker, state, batch, share) -> None:
    after = laws.state_after(worker, state, batch, share)
    assert after.gpu > max(0.75, state.gpu)
    assert after.mem > state.mem
    assert max(after.cpu, after.gpu) < 1
    assert laws.state_after(worker, state, batch + 1, share).mem > after.mem
    assert laws.state_after(worker, state, batch, share / 2).cpu < after.cpu


def test_an_idle_nano_holds_the_largest_batch_and_no_sample_more() -> None:
    nano = WORKERS[NANO]
    assert (
        laws.state_after(nano, nano.rest, 32).mem
        <= MEM_LIMIT + 1e-9
        < laws.state_after(nano, nano.rest, 33).mem
    )


@given(workers, states, st.floats(0.01, 0.1))
def test_an_application_takes_longer_on_a_busier_machine(worker, state, more) -> None:
    takes_s = laws.sift_s(worker, state)
    assert laws.sift_s(worker, replace(state, cpu=state.cpu + more)) > takes_s
    assert laws.sift_s(worker, replace(state, gpu=state.gpu + more)) > takes_s
    assert laws.sift_s(worker, replace(state, mem=0.99)) > takes_s


def test_a_server_is_busier_with_more_workers() -> None:
    one, three = (laws.after_updates(SERVER, SERVER.rest, [(1.5, 0.5)] * count) for count in (1, 3))
    assert three.cpu > one.cpu
    assert three.mem > one.mem
