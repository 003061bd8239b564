"""Deep-Edge's laws, the 120 experiments, the data points and an epoch that can be followed by hand."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.fleet.papers.deep_edge import laws
from ekya.fleet.papers.deep_edge.laws import NANO, PI, SERVER, SIFT, TX2, WORKERS
from ekya.fleet.papers.deep_edge.workload import (
    DEADLINE_S,
    SEEDS,
    EdgePhysics,
    edge_experiment,
    profile_points,
)
from ekya.fleet.policy.assignment import Decision, JobAssignment, NodePart
from ekya.fleet.policy.deep_edge.estimates import ANY_EDGE, EdgeTraining
from ekya.fleet.policy.places import NodeState
from ekya.fleet.sim.engine import BrokenConstraintError, FleetEngine


class Says:
    name, on_events, every_us = "says", True, None

    def __init__(self, *parts, server="server"):
        self.parts, self.server = parts, server

    def decide(self, view):
        return Decision((JobAssignment(view.jobs[0].job.name, self.parts, "so", self.server),))


def play(experiment, *parts, server="server"):
    physics = EdgePhysics(experiment.truth)
    engine = FleetEngine(Says(*parts, server=server), physics, [experiment.job], experiment.places)
    return engine.run().jobs[experiment.job.name]


def test_there_are_120_experiments_and_each_begins_with_its_deadlines_kept() -> None:
    assert len(set(SEEDS)) == 120
    stressed = 0
    for seed in SEEDS:
        experiment = edge_experiment(seed)
        nodes = experiment.places.nodes
        assert [node.kind for node in nodes.values()] == [TX2, NANO, NANO, NANO, PI]
        for name, node in nodes.items():
            assert node.state != experiment.truth[name]
            if node.kind in WORKERS:
                stressed += experiment.truth[name] != WORKERS[node.kind].rest
                assert laws.exec_s(node.kind, SIFT, experiment.truth[name]) <= DEADLINE_S
    assert 0.8 * 480 < stressed < 480


def test_an_experiment_is_its_seeds() -> None:
    assert edge_experiment(2020) == edge_experiment(2020)
    assert edge_experiment(2020).truth != edge_experiment(2021).truth


def test_data_points_are_the_laws_but_for_noise() -> None:
    points = profile_points(NANO, 60)
    assert points == profile_points(NANO, 60)
    found = [point.compute_s / laws.compute_s(point.training) for point in points]
    assert np.mean(found) == pytest.approx(1, abs=0.02)
    assert 0.005 < np.std(found) < 0.06
    assert {len(point.batches) for point in points} == {1, 2, 3, 4}
    assert all(point.batches[0] == point.batch and point.after.mem <= 1 for point in points)


def test_held_back_points_say_to_which_share() -> None:
    points = profile_points(TX2, 40, shares_milli=(250, 500))
    assert {point.share_milli for point in points} == {250, 500}


def test_an_epoch_is_as_long_as_its_slowest_workers_whole_steps() -> None:
    experiment = edge_experiment(2020, kinds=(TX2, NANO), epochs=3)
    fast, slow = (name for name, node in experiment.places.nodes.items() if node.kind != PI)
    record = play(experiment, NodePart(fast, chunks=2000, batch=32), NodePart(slow, chunks=1855, batch=8))
    workers = [EdgeTraining(TX2, experiment.truth[fast], 32), EdgeTraining(NANO, experiment.truth[slow], 8)]
    updating_s = laws.update_s(workers, experiment.truth["server"])[1]
    last_s = 7 * laws.compute_s(dataclasses.replace(workers[1], batch=7)) + updating_s
    epoch_s = 231 * (8 * laws.compute_s(workers[1]) + updating_s) + last_s
    assert record.ended_us / 1e6 == pytest.approx(3 * epoch_s, abs=1e-5)


def test_a_deadline_that_training_breaks_is_counted_and_holding_it_back_keeps_it() -> None:
    calm = edge_experiment(2020, kinds=(NANO,), epochs=2)
    busy = dataclasses.replace(WORKERS[NANO].rest, cpu=0.8)
    (name,) = (name for name, node in calm.places.nodes.items() if node.kind == NANO)
    experiment = dataclasses.replace(calm, truth={**calm.truth, name: busy})
    assert laws.exec_s(NANO, SIFT, busy) < DEADLINE_S
    assert play(experiment, NodePart(name, chunks=3855, batch=16)).late_apps == 2
    held = play(experiment, NodePart(name, chunks=3855, batch=16, share_milli=300))
    free = play(experiment, NodePart(name, chunks=3855, batch=16))
    assert held.late_apps == 0
    assert held.ended_us > free.ended_us


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ({"chunks": 3854, "batch": 8}, "trains 3854 of 3855 samples"),
        ({"chunks": 3855, "batch": 33}, "batches of 33, outside 2 to 32"),
        ({"chunks": 3855, "batch": 1}, "batches of 1, outside 2 to 32"),
        ({"chunks": 0, "batch": 8}, "nothing to train"),
        ({"chunks": 3855, "batch": 8, "share_milli": 0}, "a share of 0"),
    ],
)
def test_a_decision_that_breaks_a_constraint_is_found_out(part, fault) -> None:
    experiment = edge_experiment(2020, kinds=(TX2,))
    with pytest.raises(BrokenConstraintError, match=fault):
        play(experiment, NodePart("tx2-0", **part))


def test_memory_that_is_not_there_and_machines_that_do_not_train_are_found_out() -> None:
    experiment = edge_experiment(2020, kinds=(NANO, TX2))
    full = {**experiment.truth, "nano-0": dataclasses.replace(WORKERS[NANO].rest, mem=0.6)}
    with pytest.raises(BrokenConstraintError, match="no memory for batches of 32"):
        play(dataclasses.replace(experiment, truth=full), NodePart("nano-0", chunks=3855, batch=32))
    with pytest.raises(BrokenConstraintError, match="server does not train"):
        play(experiment, NodePart("server", chunks=3855, batch=32))
    with pytest.raises(BrokenConstraintError, match="has no parameter server"):
        play(experiment, NodePart("tx2-1", chunks=3855, batch=32), server=None)
    with pytest.raises(BrokenConstraintError, match="tx2-1 trains twice"):
        play(experiment, NodePart("tx2-1", chunks=3855, batch=32), NodePart("tx2-1", chunks=3855, batch=32))


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
    assert laws.state_after(most).mem <= ANY_EDGE.mem + 1e-9 < laws.state_after(more).mem


@given(kinds, states, st.floats(0.01, 0.1))
def test_an_application_takes_longer_on_a_busier_machine(kind, state, more) -> None:
    takes_s = laws.exec_s(kind, SIFT, state)
    assert laws.exec_s(kind, SIFT, replace(state, cpu=state.cpu + more)) > takes_s
    assert laws.exec_s(kind, SIFT, replace(state, gpu=state.gpu + more)) > takes_s
    assert laws.exec_s(kind, SIFT, replace(state, mem=0.99)) > takes_s
