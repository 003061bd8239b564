"""Tests of a retraining on virtual time: changes of its share do not change its work."""

import weakref
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starts import start_retraining

import ekya.simulation.emulated.world
from ekya.core.configs import RetrainConfig
from ekya.core.events import RetrainFinished, RetrainProgress
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import JobId, StreamId
from ekya.models.training.operations import RetrainingCost
from ekya.pipeline.costs import CostCard
from ekya.simulation.emulated.world import training_steps
from ekya.simulation.retraining import VirtualRetraining

CAM, JOB = StreamId("cam"), JobId(3)
BENT = SpeedCurve(((0, 0.0), (250, 0.5), (1000, 1.0)))
S = 1_000_000
PREPARE_GPU_S, EPOCH_GPU_S = 1.5, 2.0
CARD = CostCard("a device", 1e9, 2e9, 1e9, 0.0, 1e9, 1e9, 0)


class Trained:
    """Fake retraining whose epochs give these accuracies."""

    def __init__(self, *accuracies):
        self.config = RetrainConfig(len(accuracies), 16, 0, 1, 1.0)
        self.prepared = False
        self._accuracies, self._done = accuracies, 0

    @property
    def done(self):
        return self._done == len(self._accuracies)

    def prepare_training(self):
        assert not self.prepared
        self.prepared = True

    def run_epoch(self):
        assert self.prepared
        assert not self.done
        self._done += 1
        return SimpleNamespace(epoch=self._done, validation_accuracy=self._accuracies[self._done - 1])

    def model(self):
        return f"weights after epoch {self._done}"


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    monkeypatch.setattr(
        ekya.simulation.emulated.world,
        "retraining_cost",
        lambda _: RetrainingCost(3_000_000_000, 2_000_000_000, 5),
    )


def begin(*accuracies, share_milli=1000, now_us=0, speed=LINEAR):
    return started(Trained(*accuracies), share_milli, now_us, speed)


def started(trained, share_milli=1000, now_us=0, speed=LINEAR):
    command = start_retraining(CAM, trained.config, job=JOB, window=2, share_milli=share_milli)
    return VirtualRetraining(command, training_steps(trained, CARD), speed, now_us)


def run_to_end(training, resizes=(), report_at=()):
    """Runs a training with resizes and reports at given times; returns events, GPU-seconds and end time."""
    told, used, now_us = [], 0.0, 0
    acts = sorted([(at, "resize", share) for at, share in resizes] + [(at, "report", 0) for at in report_at])
    while not any(isinstance(event, RetrainFinished) for event in told):
        due = training.due_us
        if acts and (due is None or acts[0][0] < due):
            now_us, what, share = acts.pop(0)
            if what == "resize":
                training.resize(share, now_us)
            else:
                used += training.used_gpu_s(now_us)
        else:
            assert due is not None, "it is paused for good"
            assert due >= now_us
            now_us = due
            told.extend(training.finish_step(now_us))
    return told, used + training.used_gpu_s(now_us), now_us


def test_retraining_whole_gpu_takes_the_counted_time():
    told, used, end_us = run_to_end(begin(0.5, 0.7, 0.6))
    assert told == [
        RetrainProgress(3_500_000, CAM, JOB, 1, 0.5, 3.5),
        RetrainProgress(5_500_000, CAM, JOB, 2, 0.7, 5.5),
        RetrainProgress(7_500_000, CAM, JOB, 3, 0.6, 7.5),
        RetrainFinished(7_500_000, CAM, JOB, 7.5),
    ]
    assert used == pytest.approx(7.5)
    assert end_us == 7_500_000


def test_retraining_speed_curve_gives_worth_of_a_share():
    assert run_to_end(begin(0.5, share_milli=250, speed=BENT))[2] == 7 * S
    assert run_to_end(begin(0.5, share_milli=250, speed=LINEAR))[2] == 14 * S


def test_retraining_resize_in_a_step_keeps_finished_part():
    """After 1 s at a whole GPU, 0.5 GPU-seconds of the preparation remain, which take 2 s at a quarter."""
    training = begin(0.5)
    training.resize(250, S)
    assert training.due_us == 3 * S


def test_retraining_without_share_pauses():
    training = begin(0.5)
    training.resize(0, S)
    assert training.due_us is None
    assert training.used_gpu_s(100 * S) == pytest.approx(1.0)
    training.resize(500, 200 * S)
    assert training.due_us == 201 * S
    assert training.used_gpu_s(200 * S + S // 2) == pytest.approx(0.25)


def test_retraining_checkpoint_delays_it():
    training = begin(0.5)
    training.finish_step(1_500_000)
    assert training.due_us == 3_500_000
    training.delay(50_000)
    assert training.due_us == 3_550_000
    training.resize(500, 1_520_000)
    assert training.due_us == 1_550_000 + 4 * S


def test_retraining_best_weights_are_of_the_last_best_epoch():
    training = begin(0.5, 0.7, 0.7, 0.6)
    assert training.best is None
    run_to_end(training)
    best = (training.best.epoch, training.best.validation_accuracy, training.best.model)
    assert best == (3, 0.7, "weights after epoch 3")


def test_retraining_preparation_gives_no_event():
    training = begin(0.5)
    assert training.finish_step(training.due_us) == []
    assert training.best is None


resizes = st.lists(st.tuples(st.integers(0, 30 * S), st.sampled_from([0, 100, 250, 500, 1000])), max_size=8)


@settings(max_examples=80)
@given(resizes, st.lists(st.integers(0, 40 * S), max_size=4), st.sampled_from([LINEAR, BENT]))
def test_retraining_resizes_conserve_the_work(resized, report_at, speed):
    """Any resizes and reports give the same GPU-seconds, reported and used, and the times add up."""
    resized = [*resized, (31 * S, 1000)]
    training = begin(0.5, 0.6, 0.7, speed=speed)
    told, used, end_us = run_to_end(training, resized, report_at)
    total = PREPARE_GPU_S + 3 * EPOCH_GPU_S
    assert told[-1].gpu_s == total
    assert [event.gpu_s for event in told[:-1]] == [3.5, 5.5, 7.5]
    # Step ends are rounded to a whole microsecond.
    assert used == pytest.approx(total, abs=4e-6)
    share_milli, since_us, worked = 1000, 0, 0.0
    for at_us, share in [*sorted(resized), (end_us, 0)]:
        worked += speed.speed_at(share_milli) * max(min(at_us, end_us) - since_us, 0) / S
        share_milli, since_us = share, min(at_us, end_us)
    assert worked == pytest.approx(total, abs=4e-6)


@given(st.lists(st.integers(0, 7 * S), max_size=10))
def test_retraining_resize_to_same_share_changes_nothing(times):
    _, _, end_us = run_to_end(begin(0.5, 0.6, 0.7), [(at, 1000) for at in times])
    assert abs(end_us - 7_500_000) <= 4


def test_retraining_ended_keeps_only_its_best_weights():
    trained = Trained(0.4, 0.6)
    there = weakref.ref(trained)
    training = started(trained)
    del trained
    run_to_end(training)
    training.stop_training(9 * S)
    assert (training.best.model, training.due_us) == ("weights after epoch 2", None)
    assert there() is None
    with pytest.raises(RuntimeError, match="has ended"):
        training.finish_step(10 * S)
