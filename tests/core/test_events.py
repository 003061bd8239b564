"""Order of the events in a batch."""

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.areas import Areas
from ekya.core.configs import InferenceConfig
from ekya.core.events import Event, in_order
from ekya.core.gpus import DidNotFit
from ekya.core.preparation_events import AccuracyAudited
from ekya.core.profile import Family
from ekya.core.shares import inference_holder
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.core.weights import LabelBudget

A, B = StreamId("a"), StreamId("b")


def one_of_each(t_us):
    return (
        ev.WindowOpened(t_us, 1, t_us + 10),
        ev.WindowClosed(t_us, 0),
        ev.PreparationEnded(t_us, 0),
        ev.StreamAdded(t_us, A, ()),
        ev.LabelsReady(t_us, A, 0, 8, 2, 0.5, False, 0.1),
        ev.InferenceProfiled(t_us, A, 0, (), 0.1),
        ev.ProfileReady(t_us, A, 0, None, 0.1),
        ev.RetrainProfiled(t_us, A, 0, (), 0.1),
        AccuracyAudited(t_us, A, 0, 900, (2, 0), (3, 0), 0.1),
        ev.RetrainFailed(t_us, A, JobId(1), "why"),
        ev.RetrainFinished(t_us, A, JobId(1), 1.0),
        ev.MemoryShort(t_us, A, 0, DidNotFit(Family(0, 0, 16), 1.0), "why"),
        ev.MemoryMeasured(t_us, A, JobId(1), 1),
        ev.GpuMeasured(t_us, 0, ()),
        ev.FramesCounted(t_us, A, 0, 50, 49),
        ev.DriftDetected(t_us, A, 0, t_us - 2, "why"),
        ev.MoreLabelsDue(t_us, A, 0),
        ev.Warned(t_us, "inference/A", "why"),
        ev.ProfilerDown(t_us),
        ev.ProfilerBack(t_us),
        ev.RetrainProgress(t_us, A, JobId(1), 1, 0.5, 0.5),
        ev.ModelCached(t_us, A, None),
        ev.RolledBack(t_us, A, ModelVersion(3), ModelVersion(1), 90),
        ev.ModelSwapped(t_us, A, ModelVersion(1), JobId(1), 0.5, 3),
        ev.ShareMeasured(t_us, A, ev.Role.INFERENCE, 1),
        ev.NeedMeasured(t_us, A, InferenceConfig(1, 32), 120),
        ev.ShareResized(t_us, inference_holder(A), 1, 300, 40),
        ev.ShareOverdue(t_us, inference_holder(A), 1, 9),
        ev.CapacityLent(t_us, 200),
        ev.WorkerDied(t_us, A, ev.Role.INFERENCE, "why"),
        ev.StreamReadmitted(t_us, A),
        ev.WorkerBack(t_us, A, ev.Role.INFERENCE),
        ev.StreamLost(t_us, A, "why"),
        ev.StreamBack(t_us, A),
        ev.StreamEnded(t_us, A),
        rq.StreamPaused(t_us, A, True),
        rq.StreamRemoved(t_us, A),
        rq.ModelFrozen(t_us, A, True),
        rq.RollBackRequested(t_us, A, ModelVersion(1)),
        rq.LabelsRequested(t_us, A, 0),
        rq.TermsChanged(t_us, A, 2.0, None),
        rq.AreasChanged(t_us, A, Areas()),
        rq.MinAccuracyChanged(t_us, 0.5),
        rq.SchedulerChanged(t_us, "thief"),
        rq.CapacityChanged(t_us, 700, 200),
        rq.RestartRequested(t_us, "the class tram was added"),
        rq.LabelBudgetChanged(t_us, LabelBudget(48, None)),
    )


def test_event_order_covers_every_kind():
    assert {type(event) for event in one_of_each(0)} == set(get_args(Event))
    assert len(in_order(one_of_each(0))) == len(get_args(Event))


def kinds(events):
    return [type(event) for event in events]


@given(st.permutations(one_of_each(4)))
def test_in_order_closes_old_window_before_new(events):
    ordered = kinds(in_order(events))
    assert ordered[-2:] == [ev.WindowClosed, ev.WindowOpened]
    assert ordered[0] == ev.StreamAdded
    assert ordered.index(ev.RetrainProgress) < ordered.index(ev.RetrainFinished)
    assert ordered.index(ev.MemoryShort) < ordered.index(ev.RetrainFailed)
    assert ordered.index(ev.LabelsReady) < ordered.index(ev.PreparationEnded)


def test_in_order_sorts_by_time_before_kind():
    opened, progress = ev.WindowOpened(10, 1, 20), ev.RetrainProgress(11, A, JobId(1), 1, 0.5, 0.5)
    assert in_order([progress, opened]) == (opened, progress)


@given(st.lists(st.sampled_from([A, B]), max_size=8), st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_in_order_is_stable(streams, times):
    """A serial number in the reason distinguishes equal events."""
    given_events = [
        ev.StreamLost(t_us, stream, str(number))
        for number, (stream, t_us) in enumerate(zip(streams, times, strict=False))
    ]
    ordered = in_order(given_events)
    for t_us in range(3):
        serials = [int(event.reason) for event in ordered if event.t_us == t_us]
        assert serials == sorted(serials)
    assert [event.t_us for event in ordered] == sorted(event.t_us for event in given_events)
