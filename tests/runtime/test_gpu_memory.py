"""Tests of GPU memory and its meter: what does not fit is refused, and each window's use is reported."""

from dataclasses import replace

import pytest
from fake_actors import labels_ready, start_retraining
from script import CAM_1, CAM_2, CAM_3, OPTIONS, TRIALS, three_cameras
from scripted import ScriptedFleet

from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.control.loop import run_loop
from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.gpus import DidNotFit, Footprint, GpuUse
from ekya.core.profile import Family, family_of
from ekya.core.units import JobId, StreamId
from ekya.core.weights import SceneOf
from ekya.models.edge.architecture_table import Task
from ekya.models.training.exemplars import MOST_EXEMPLARS
from ekya.pipeline.setup import job_places
from ekya.planning.adaptation.label_pooling import MOST_POOLED
from ekya.planning.placement.homes import PREPARATION_GPU, JobPlaces, Processes, assign_home_gpus
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.sizing.gpu_memory import CONTEXT_BYTES, JobCrops
from ekya.runtime.actors.actor_kinds import ActorConfig, StreamActorConfig
from ekya.runtime.shares.gpu_memory import (
    BudgetedExecutor,
    JobSizes,
    MeteredExecutor,
    job_sizes,
    require_inference,
)

A, B, C = StreamId("a"), StreamId("b"), StreamId("c")
HEAD, BLOCK = RetrainConfig(4, 16, 0, 0, 1.0), RetrainConfig(4, 16, 0, 1, 1.0)
MIB = 1 << 20
CONTEXT_MIB = CONTEXT_BYTES // MIB
MODEL_MIB = {0: 100, 1: 1000}
"""Memory of a retraining here, by its number of trained blocks."""


def footprint(family):
    return Footprint(MODEL_MIB[family.trainable_blocks] * MIB, 0, 0, 0, 0, 0, 32)


class Memory:
    """Fake source of the free memory of each GPU."""

    def __init__(self, *free_mib):
        self.free_mib = list(free_mib)

    def free_bytes(self, gpu):
        free = self.free_mib[gpu]
        return None if free is None else free * MIB


class Behind:
    """Fake inner executor that returns given events."""

    def __init__(self):
        self.executed, self.events, self.asked_until = [], [], []

    def wait(self, until_us):
        self.asked_until.append(until_us)
        events, self.events = tuple(self.events), []
        return Batch(7, events)

    def execute_commands(self, commands):
        self.executed += commands


class Rig:
    """A budget over two GPUs; streams a and c are on the first, b and preparation on the second."""

    def __init__(self, *free_mib, sizes=JobSizes):
        self.memory, self.behind = Memory(*free_mib), Behind()
        places = JobPlaces({A: 0, B: 1, C: 0}, 1)
        self.budget = BudgetedExecutor(self.behind, self.memory, places, sizes(footprint, 400, 120))
        self.budget.wait(0)

    def start(self, job, stream=A, config=HEAD):
        """Returns whether the retraining has begun, and the events about it."""
        command = start_retraining(stream, job, config=config)
        self.budget.execute_commands([command])
        return command in self.behind.executed, self.events()

    def events(self, *events):
        self.behind.events = list(events)
        return list(self.budget.wait(100).events)


def test_stream_that_is_added_counts_on_its_gpu():
    rig = Rig(0, 100 + CONTEXT_MIB)
    added = StreamId("added")
    rig.events(ev.StreamAdded(7, added, (), 1))
    assert rig.start(1, added) == (True, [])
    assert not rig.start(2, B)[0], "its memory is promised"


def test_retraining_of_a_stream_that_is_set_aside_claims_nothing():
    rig = Rig(100 + CONTEXT_MIB, 0)
    assert rig.start(1)[0]
    rig.budget.execute_commands([cmd.SetAside(A, "it died too often")])
    assert rig.start(2, C)[0]


def progress(job, stream=A):
    return ev.RetrainProgress(7, stream, JobId(job), 1, 0.5, 1.0)


def test_retraining_that_fits_begins_without_events():
    assert Rig(100 + CONTEXT_MIB, 0).start(1) == (True, [])


def test_retraining_that_does_not_fit_fails_with_the_figures():
    began, events = Rig(99 + CONTEXT_MIB, 9999).start(1)
    assert not began
    short, failed = events
    assert (short.stream, short.window, short.what) == (A, 1, DidNotFit.from_config(HEAD))
    assert (short.needed_bytes, short.free_bytes) == (CONTEXT_BYTES + 100 * MIB, CONTEXT_BYTES + 99 * MIB)
    assert (failed.stream, failed.job, failed.reason) == (A, JobId(1), short.reason)
    assert short.reason == (
        "retraining (4 ep, 0 blocks, batch 16, 100% data) needs about 612 MiB, and 611 MiB of GPU 0 are free"
    )


def test_refusal_is_reported_immediately_and_once():
    rig = Rig(0, 0)
    rig.budget.execute_commands([start_retraining(A, config=HEAD)])
    assert len(rig.budget.wait(100).events) == 2
    assert rig.behind.asked_until == [0, 7]
    assert rig.budget.wait(100).events == ()
    assert rig.behind.asked_until == [0, 7, 100]


def test_jobs_that_begin_together_claim_separate_memory():
    rig = Rig(100 + CONTEXT_MIB + 150, 0)
    assert rig.start(1)[0]
    began, events = rig.start(2, C)
    assert not began
    assert "promised to jobs that have just begun" in events[0].reason


@pytest.mark.parametrize(
    "over",
    [
        progress(1),
        ev.RetrainFinished(7, A, JobId(1), 1.0),
        ev.RetrainFailed(7, A, JobId(1), "a bug"),
        ev.WorkerDied(7, A, ev.Role.RETRAINING, "killed"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_claim_ends_when_the_driver_counts_the_memory_of_the_job(over):
    """After its first epoch a job has allocated all its memory."""
    rig = Rig(700, 0)
    assert rig.start(1)[0]
    assert not rig.start(2, C)[0]
    rig.events(over)
    assert rig.start(3, C)[0]


def test_stopped_job_claims_nothing():
    rig = Rig(700, 0)
    rig.start(1)
    rig.budget.execute_commands([cmd.StopRetraining(A, JobId(1))])
    assert rig.start(3, C)[0]


def test_claims_of_two_gpus_are_separate():
    rig = Rig(700, 700)
    assert rig.start(1, A)[0]
    assert rig.start(2, B)[0]
    assert not rig.start(3, C)[0]


def test_process_that_has_trained_needs_no_second_context():
    rig = Rig(700, 0)
    rig.start(1)
    rig.events(progress(1), ev.RetrainFinished(7, A, JobId(1), 1.0))
    rig.memory.free_mib[0] = 100
    assert rig.start(2)[0]
    rig.events(ev.RetrainFinished(7, A, JobId(2), 1.0), ev.WorkerDied(7, A, ev.Role.RETRAINING, "killed"))
    assert not rig.start(3)[0], "the process that comes after a dead one begins anew"


def test_measured_memory_of_a_job_corrects_the_next_estimate():
    rig = Rig(700, 0)
    rig.start(1)
    rig.events(progress(1), ev.RetrainFinished(7, A, JobId(1), 1.0))
    rig.events(ev.MemoryMeasured(7, A, JobId(1), 250 * MIB))
    rig.memory.free_mib[0] = 249
    _, (short, _) = rig.start(2)
    assert short.needed_bytes == 250 * MIB
    rig.memory.free_mib[0] = 250
    assert rig.start(3)[0]


def test_jobs_on_a_gpu_with_unknown_memory_are_not_refused():
    assert Rig(None, None).start(1, config=BLOCK) == (True, [])


def test_estimate_counts_the_labels_of_the_window():
    crops = []

    class Sizes(JobSizes):
        def estimate_retraining(self, config, counted):
            crops.append(counted)
            return 0

    rig = Rig(9999, 9999, sizes=Sizes)
    rig.events(labels_ready(A))
    rig.start(1)
    rig.events(progress(1), labels_ready(A, 2, training_crops=90, validation_crops=30))
    rig.start(2)
    assert [(one.training, one.validation, one.exemplars) for one in crops] == [(80, 20, 0), (90, 30, 120)]


PREPARATION = cmd.BeginPreparation(
    1,
    500,
    (
        cmd.PrepareStream(A, (), (family_of(HEAD), family_of(BLOCK))),
        cmd.PrepareStream(B, (), (family_of(HEAD),)),
    ),
)


def test_family_that_does_not_fit_is_left_out_of_the_preparation():
    rig = Rig(0, 400)
    rig.budget.execute_commands([PREPARATION])
    (passed,) = rig.behind.executed
    assert [asked.families for asked in passed.streams] == [(family_of(HEAD),), (family_of(HEAD),)]
    (short,) = rig.events()
    assert (short.stream, short.window, short.what) == (A, 1, DidNotFit(Family(1, 0, 16), 0.0))
    assert short.reason == "a micro-profile needs about 1,000 MiB, and 400 MiB of GPU 1 are free"


@pytest.mark.parametrize("ends", ["event", "command"])
def test_preparation_claims_its_largest_trial_until_it_ends(ends):
    rig = Rig(0, 1200)
    rig.budget.execute_commands([PREPARATION])
    assert rig.behind.executed == [PREPARATION]
    assert not rig.start(1, B)[0]
    if ends == "event":
        rig.events(ev.PreparationEnded(7, 1))
    else:
        rig.budget.execute_commands([cmd.EndPreparation(1)])
    assert rig.start(2, B)[0]


POOLING = replace(
    PREPARATION, streams=tuple(replace(one, scenes=(SceneOf(A, 0),)) for one in PREPARATION.streams)
)


class LargerPooled(JobSizes):
    """Sizes of trials of 100 MiB, and of 300 MiB with pooled labels."""

    def estimate_micro_profile(self, family, pooled=False):
        return (300 if pooled else 100) * MIB


def test_preparation_claims_the_trial_with_pooled_labels():
    rig = Rig(0, 300 + 100 + CONTEXT_MIB - 1, sizes=LargerPooled)
    rig.budget.execute_commands([POOLING])
    assert rig.behind.executed == [POOLING]
    assert not rig.start(1, B)[0]


def test_trial_with_pooled_labels_needs_memory_for_the_most_that_may_be_pooled():
    counted = []

    class Sizes(JobSizes):
        def estimate_retraining(self, config, crops):
            counted.append(crops.training)
            return 0

    Rig(9999, 9999, sizes=Sizes).budget.execute_commands([POOLING])
    assert max(counted) == 400 * (1 + MOST_POOLED)


class Kept:
    """Journal in memory."""

    def __init__(self):
        self.events, self.commands = [], []

    def record_batch(self, batch):
        self.events += batch.events

    def record_decision(self, now_us, plan, commands):
        self.commands += commands


class SmallTrials(JobSizes):
    """Sizes with which a micro-profile fits where a retraining of its family does not."""

    def estimate_micro_profile(self, family, pooled=False):
        return 0


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("thief", JobSizes), ("ekya", JobSizes), ("ekya", SmallTrials), ("serial", SmallTrials)],
)
def test_whole_run_trains_only_what_fits(name, sizes):
    """From window 2 on there is no memory for blocks; heads are trained, and the run goes on to its end."""
    fleet = ScriptedFleet(TRIALS, three_cameras(), 1, ())
    memory, kept, chosen = Memory(99_999), Kept(), make_scheduler(name)
    places = JobPlaces({CAM_1: 0, CAM_2: 0, CAM_3: 0}, 0)

    def larger(family):
        return replace(footprint(family), model_bytes=(5000 if family.trainable_blocks else 100) * MIB)

    budget = BudgetedExecutor(fleet, memory, places, sizes(larger, 400, 120))

    def observe(batch, _turn):
        if batch.now_us >= 2 * OPTIONS.window_us - OPTIONS.window_us // 10:
            memory.free_mib = [4000]

    run_loop(budget, kept, chosen.plan, chosen.needs, TRIALS, observe)
    starts = [one for one in kept.commands if isinstance(one, cmd.StartRetraining)]
    short = [one for one in kept.events if isinstance(one, ev.MemoryShort)]
    failed = {one.job for one in kept.events if isinstance(one, ev.RetrainFailed)}
    assert short
    assert {one.window for one in short} <= {2, 3}
    assert {one.what.family.trainable_blocks for one in short} == {1}
    if sizes is SmallTrials:
        assert failed
    else:
        assert any(one.what.data_fraction == 0.0 for one in short)
    trained = [one for one in starts if one.window >= 2 and one.job not in failed]
    assert trained
    assert {one.config.trainable_blocks for one in trained} == {0}
    closed = [one.index for one in kept.events if isinstance(one, ev.WindowClosed)]
    assert closed == list(range(OPTIONS.windows))


def test_remote_retraining_claims_no_memory():
    from_cloud = start_retraining(A, config=BLOCK)
    rig = Rig(0, 0)
    far = replace(from_cloud, elsewhere=object())
    rig.budget.execute_commands([far])
    assert rig.behind.executed == [far]


# A fleet before its start


@pytest.fixture
def fleet():
    return load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))


def test_fleet_that_fits_or_has_unknown_memory_is_accepted(fleet):
    two = job_places(fleet, 2000)
    require_inference(fleet, Processes.STREAM, two, Memory(1 << 20, 1 << 20))
    require_inference(fleet, Processes.STREAM, two, Memory(None, None))


@pytest.mark.parametrize(("free", "full"), [((0, 1 << 20), 0), ((1 << 20, 0), 1)])
def test_fleet_on_a_full_gpu_is_refused_with_its_number(fleet, free, full):
    two = job_places(fleet, 2000)
    with pytest.raises(UserError, match=rf"to serve \d of them GPU {full} needs about [\d,]+ MiB, and 0 MiB"):
        require_inference(fleet, Processes.STREAM, two, Memory(*free))


def test_check_counts_a_context_for_each_process(fleet):
    one = job_places(fleet, 1000)
    with pytest.raises(UserError, match="key 'streams'"):
        require_inference(fleet, Processes.STREAM, one, Memory((len(fleet.streams) + 1) * CONTEXT_MIB))


def test_job_places_are_the_gpus_of_the_actors(fleet):
    for gpus_milli in (1000, 2000, 2500):
        homes = assign_home_gpus(len(fleet.streams), gpus_milli)
        orders = ActorConfig(None, fleet, 0, None, "cuda", homes)
        places = job_places(fleet, gpus_milli)
        for place, stream in enumerate(fleet.streams):
            assert places.streams[stream.id] == StreamActorConfig(orders, place, 0).gpu
        assert places.preparation == PREPARATION_GPU


def test_job_sizes_follow_the_model_of_the_fleet(fleet):
    sizes = job_sizes(fleet)
    deep, head = RetrainConfig(1, 16, 0, 3, 1.0), RetrainConfig(1, 16, 0, 0, 1.0)
    crops = JobCrops(200, 50, MOST_EXEMPLARS[Task.CLASSIFY])
    assert sizes.estimate_retraining(deep, crops) > 2 * sizes.estimate_retraining(head, crops)
    small = job_sizes(
        fleet.model_copy(update={"edge": fleet.edge.model_copy(update={"model": "mobilenet_v3_small"})})
    )
    assert small.estimate_retraining(head, crops) < sizes.estimate_retraining(head, crops) / 2
    assert (sizes.labels_per_window, sizes.exemplars) == (
        fleet.golden.labels_per_window,
        MOST_EXEMPLARS[Task.CLASSIFY],
    )


def test_check_counts_one_context_for_a_shared_process(fleet):
    one = job_places(fleet, 1000)
    enough = Memory(len(fleet.streams) * CONTEXT_MIB)
    require_inference(fleet, Processes.GPU, one, enough)
    with pytest.raises(UserError, match="key 'streams'"):
        require_inference(fleet, Processes.STREAM, one, enough)
    with pytest.raises(UserError, match="key 'streams'"):
        require_inference(fleet, Processes.GPU, one, Memory(2 * CONTEXT_MIB))


# Use of each window


WINDOW_US = 10_000_000
CAM = StreamId("cam")
USE = GpuUse(0, "GPU-1", WINDOW_US, 8, 4, 5, 0.5, "sm-utilization", 90.0, 900.0, "counter", 11)


class Executor:
    """Executor whose waits end at given times."""

    def __init__(self, *times_us):
        self._times_us, self.executed = list(times_us), []

    def wait(self, until_us):
        now_us = self._times_us.pop(0)
        return Batch(now_us, (ev.StreamBack(now_us, CAM),))

    def execute_commands(self, commands):
        self.executed += commands


class Meter:
    """Meter that numbers its readings."""

    def __init__(self, silent=False):
        self.taken, self._silent = 0, silent

    def drain_uses(self):
        self.taken += 1
        return () if self._silent else (replace(USE, readings=self.taken),)


def told(executor, turns):
    return [
        event for _ in range(turns) for event in executor.wait(0).events if isinstance(event, ev.GpuMeasured)
    ]


def test_gpu_use_of_a_window_is_in_the_first_batch_after_it():
    times = [0, WINDOW_US - 1, WINDOW_US, WINDOW_US + 5, 2 * WINDOW_US + 7]
    meter = Meter()
    measured = told(MeteredExecutor(Executor(*times), meter, WINDOW_US), len(times))
    assert [(event.t_us, event.window) for event in measured] == [(WINDOW_US, 0), (2 * WINDOW_US, 1)]
    assert [event.gpus[0].readings for event in measured] == [1, 2]
    assert meter.taken == 2


def test_other_events_precede_gpu_use_and_commands_pass():
    behind = Executor(WINDOW_US)
    executor = MeteredExecutor(behind, Meter(), WINDOW_US)
    batch = executor.wait(0)
    assert [type(event) for event in batch.events] == [ev.StreamBack, ev.GpuMeasured]
    executor.execute_commands([cmd.EndPreparation(0)])
    assert behind.executed == [cmd.EndPreparation(0)]


def test_gpus_that_cannot_be_read_are_not_reported():
    assert told(MeteredExecutor(Executor(WINDOW_US, 2 * WINDOW_US), Meter(silent=True), WINDOW_US), 2) == []


def test_missed_windows_are_not_reported_later():
    measured = told(MeteredExecutor(Executor(3 * WINDOW_US, 4 * WINDOW_US), Meter(), WINDOW_US), 2)
    assert [event.window for event in measured] == [0, 3]


@pytest.mark.parametrize("from_us", [3 * WINDOW_US, 3 * WINDOW_US + 4])
def test_resumed_run_reports_from_its_window_on(from_us):
    executor = MeteredExecutor(Executor(3 * WINDOW_US + 5, 4 * WINDOW_US), Meter(), WINDOW_US, from_us)
    assert [event.window for event in told(executor, 2)] == [3]


def test_gpu_use_is_ordered_before_the_end_of_the_window():
    closed, measured = ev.WindowClosed(WINDOW_US, 0), ev.GpuMeasured(WINDOW_US, 0, (USE,))
    assert ev.in_order([closed, measured]) == (measured, closed)
