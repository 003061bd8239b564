"""Deep-Edge's testbed: figures from the paper's text, and directions from its figures' captions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.fleet.papers.deep_edge import laws
from ekya.fleet.papers.deep_edge.laws import MEM_LIMIT, NANO, SERVER, SIFT, TX2, WORKERS
from ekya.fleet.policy.deep_edge.estimates import EdgeTraining
from ekya.fleet.policy.places import NodeState

CLUSTER = (TX2, NANO, NANO, NANO)


def step_s(states, which):
    """Returns the step time of one worker of the cluster."""
    workers = [EdgeTraining(kind, state, 32) for kind, state in zip(CLUSTER, states, strict=True)]
    return 32 * laws.compute_s(workers[which]) + laws.update_s(workers, SERVER.rest)[which]


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
kinds = st.sampled_from([TX2, NANO])
batches = st.integers(2, 31)
trainings = st.builds(EdgeTraining, kinds, states, batches)


def busier(worker, **more):
    """Returns the training on a machine with more in use."""
    used = {metric: getattr(worker.state, metric) + part for metric, part in more.items()}
    return replace(worker, state=replace(worker.state, **used))


@given(trainings, st.floats(0.01, 0.1))
def test_a_sample_takes_longer_on_a_busier_machine_and_less_in_a_larger_batch(worker, more) -> None:
    takes_s = laws.compute_s(worker)
    assert laws.compute_s(busier(worker, gpu=more)) > takes_s
    assert laws.compute_s(busier(worker, cpu=more)) > takes_s
    assert laws.compute_s(busier(worker, mem=more)) == takes_s
    assert laws.compute_s(replace(worker, batch=worker.batch + 1)) < takes_s
    assert laws.compute_s(replace(worker, share_milli=round(1000 * (1 - more)))) > takes_s


@given(st.lists(trainings, min_size=1, max_size=5), st.floats(0.0, 0.8))
def test_an_update_takes_longer_with_more_workers_smaller_batches_and_a_busier_server(
    workers, server_cpu
) -> None:
    server = NodeState(cpu=server_cpu)
    takes_s = laws.update_s(workers, server)[0]
    assert laws.update_s([*workers, EdgeTraining(NANO, NodeState(cpu=0.3), 16)], server)[0] > takes_s
    larger = [replace(worker, batch=2 * worker.batch) for worker in workers]
    assert laws.update_s(larger, server)[0] <= takes_s + 1e-9
    assert laws.update_s(workers, NodeState(cpu=server_cpu + 0.1))[0] > takes_s


@given(trainings, st.integers(100, 1000))
def test_a_training_uses_more_of_everything_and_never_more_than_there_is(worker, share_milli) -> None:
    worker = replace(worker, share_milli=share_milli)
    after = laws.state_after(worker)
    assert after.gpu > max(0.75, worker.state.gpu)
    assert after.mem > worker.state.mem
    assert max(after.cpu, after.gpu) < 1
    assert laws.state_after(replace(worker, batch=worker.batch + 1)).mem > after.mem
    assert laws.state_after(replace(worker, share_milli=share_milli // 2)).cpu < after.cpu


def test_an_idle_nano_holds_the_largest_batch_and_no_sample_more() -> None:
    most, more = (EdgeTraining(NANO, WORKERS[NANO].rest, batch) for batch in (32, 33))
    assert laws.state_after(most).mem <= MEM_LIMIT + 1e-9 < laws.state_after(more).mem


@given(kinds, states, st.floats(0.01, 0.1))
def test_an_application_takes_longer_on_a_busier_machine(kind, state, more) -> None:
    takes_s = laws.exec_s(kind, SIFT, state)
    assert laws.exec_s(kind, SIFT, replace(state, cpu=state.cpu + more)) > takes_s
    assert laws.exec_s(kind, SIFT, replace(state, gpu=state.gpu + more)) > takes_s
    assert laws.exec_s(kind, SIFT, replace(state, mem=0.99)) > takes_s


def test_a_server_is_busier_with_more_workers() -> None:
    worker = EdgeTraining(NANO, WORKERS[NANO].rest, 16)
    one, three = (laws.after_updates([worker] * count, SERVER.rest) for count in (1, 3))
    assert three.cpu > one.cpu
    assert three.mem > one.mem
