"""Tests of observers of the loop: records of models, which of them stay, and metrics."""

from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from fake_actors import start_retraining
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ekya.runtime.driver.observers
from ekya.control.loop_state import LoopState
from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.state import FleetState, StreamState
from ekya.core.units import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.core.view import InferenceOption
from ekya.pipeline.run_writer import ModelRecord
from ekya.results.storage.model_files import remove_all
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.runtime.driver.observers import ModelKeeper, ModelPruner, RunMetrics, WindowKeeper

# Records of models


CAM = StreamId("cam")


def test_retrained_weights_and_a_roll_back_behind_them_are_recorded_with_their_own_files(tmp_path):
    folder, started = RunFolder.create_numbered(tmp_path, "run"), start_retraining(window=3)
    result = SimpleNamespace(commands=(started,))
    with StateStore(folder.state) as store:
        ModelRecord(folder, store, CAM).add_model(BASE_VERSION, None, -1, None, None, 0)
        swapped = ev.ModelSwapped(90, CAM, ModelVersion(1), started.job, 0.7, 5)
        back = ev.RolledBack(190, CAM, ModelVersion(2), BASE_VERSION, 5)
        unknown = ev.ModelSwapped(195, CAM, ModelVersion(3), JobId(9), 0.9, 5)
        keeper = ModelKeeper(folder, store)
        for event in (swapped, back, unknown):
            keeper(Batch(event.t_us, (event,)), result)
        base, kept, again = store.read_models(CAM)
        never = ev.RolledBack(290, CAM, ModelVersion(5), ModelVersion(4), 5)
        with pytest.raises(LookupError, match="weights 4 of cam are not recorded"):
            keeper(Batch(290, (never,)), result)
    assert (kept.version, kept.served_from_us, kept.window, kept.validation_accuracy) == (1, 90, 3, 0.7)
    assert kept.path == folder.relative_path(folder.model(CAM, ModelVersion(1)))
    assert (again.version, again.path, again.validation_accuracy) == (2, base.path, None)


# Metrics


@pytest.fixture
def values(monkeypatch):
    """Values of all metrics, by name and stream."""
    set_to = {}

    def metric(name, *_):
        def to(value, tags=None):
            set_to[name, (tags or {}).get("stream")] = value

        return SimpleNamespace(set=to, inc=to)

    for kind in ("Gauge", "Counter"):
        monkeypatch.setattr(ekya.runtime.driver.observers, kind, metric)
    return set_to


@pytest.mark.parametrize(("resolution", "accuracy"), [(32, 0.5), (GOLDEN_RESOLUTION, 0.9)])
def test_accuracy_is_that_of_the_detector_that_answers(values, resolution, accuracy):
    options = [InferenceOption(InferenceConfig(5, side), 0.9, 300) for side in (32, GOLDEN_RESOLUTION)]
    stream = StreamState(CAM, tuple(options), accuracy=0.5, inference=InferenceConfig(5, resolution))
    state = SimpleNamespace(fleet=FleetState((stream,)))
    step = SimpleNamespace(state=state, plan=None, commands=())
    RunMetrics()(Batch(1, ()), step)
    assert values["ekya_accuracy", CAM] == accuracy


# Models that stay


class Run:
    """A run of one camera whose steps the test makes."""

    def __init__(self, folder, store):
        self.folder, self.store, self.version = folder, store, ModelVersion(0)
        self.prune = ModelPruner(folder, store, keep=2)
        self._record()

    def step(self, *events, commands=()):
        state = LoopState(FleetState(streams=(StreamState(CAM, (), version=self.version),)), {})
        self.prune(Batch(0, events), StepResult(state, None, commands))

    def swap(self, times=1):
        for _ in range(times):
            self.version = ModelVersion(self.version + 1)
            self._record()
            self.step(ev.ModelSwapped(0, CAM, self.version, JobId(1), 0.9, 0))

    def open_window(self):
        self.step(ev.WindowOpened(0, 0, 10))

    def prepare(self, labelled=True):
        self.step(commands=(cmd.BeginPreparation(0, 100, (cmd.PrepareStream(CAM, (), ()),)),))
        if labelled:
            self.step(ev.LabelsReady(0, CAM, 0, 10, 10, 0.5, False, 1.0))

    def roll_back(self, of):
        self.step(commands=(cmd.RollBack(CAM, "it was better"),))
        self.version = ModelVersion(self.version + 1)
        ModelRecord(self.folder, self.store, CAM).serve_again(self.version, of, 0)
        self.step(ev.RolledBack(0, CAM, self.version, of, 0))

    def add_again(self, forgotten):
        """Adds another camera of this name, in the window of the removal or, if ``forgotten``, later."""
        if forgotten:
            self.prune(Batch(0, ()), StepResult(LoopState(FleetState(), {}), None, ()))
        remove_all(self.folder, self.store, CAM)
        self.version = ModelVersion(0)
        self._record()
        self.step(ev.StreamAdded(0, CAM, ()))

    @property
    def kept(self):
        return sorted(int(path.stem) for path in self.folder.models(CAM).iterdir())

    def _record(self):
        record = ModelRecord(self.folder, self.store, CAM)
        record.add_model(self.version, b"weights", 0, None, 0.9, 0)


@pytest.fixture
def run(tmp_path):
    folder = RunFolder.create_numbered(tmp_path, "run")
    with StateStore(folder.state) as store:
        yield Run(folder, store)


def test_pruner_keeps_a_bounded_number_of_models(run):
    for _ in range(10):
        run.open_window()
        run.prepare()
        run.swap(3)
    assert run.kept == [24, 25, 26, 27, 28, 29, 30]
    assert [row.version for row in run.store.read_models(CAM)] == run.kept


def test_pruner_keeps_what_served_when_labels_were_taken_long_ago(run):
    run.prepare()
    run.swap(3)
    run.prepare()
    for _ in range(5):  # other streams are labelled in these windows
        run.open_window()
        run.swap()
    assert 0 in run.kept
    run.prepare()
    run.open_window()
    run.swap()
    assert run.kept[0] == 3


def test_pruner_does_not_count_a_preparation_without_labels(run):
    run.prepare()
    run.swap(4)
    for _ in range(5):
        run.open_window()
        run.prepare(labelled=False)
        run.swap()
    assert run.kept[0] == 0


def test_pruner_keeps_all_while_the_stream_goes_back(run):
    for _ in range(3):
        run.open_window()
        run.prepare()
        run.swap()
    before = run.kept
    run.step(commands=(cmd.RollBack(CAM, "asked for"),))
    run.open_window()
    run.prepare()
    run.swap()
    assert run.kept == [*before, 4]
    run.step(ev.RolledBack(0, CAM, ModelVersion(5), ModelVersion(1), 0))
    run.open_window()
    run.open_window()
    run.prepare()
    run.prepare()
    run.swap()
    assert run.kept[0] > 1


def test_pruner_does_not_wait_for_ever_for_a_stream_to_go_back(run):
    run.step(commands=(cmd.RollBack(CAM, "but its inference died"),))
    for _ in range(3):
        run.open_window()
        run.prepare()
        run.swap()
    assert run.kept[0] > 0


@pytest.mark.parametrize("forgotten", [False, True])
def test_pruner_knows_a_camera_that_is_added_again_as_a_new_one(run, forgotten):
    """Versions begin again: by those of the earlier camera none of its models would be needed."""
    for _ in range(5):
        run.open_window()
        run.prepare()
        run.swap(2)
    run.prepare(labelled=False)
    run.add_again(forgotten)
    assert run.kept == [0]
    run.step(ev.LabelsReady(0, CAM, 0, 10, 10, 0.5, False, 1.0))  # of the earlier one
    run.prepare()
    run.swap(4)
    for _ in range(2):
        run.open_window()
        run.swap()
    assert run.kept == [0, 1, 2, 3, 4, 5, 6], "labels were taken of the first"
    for _ in range(2):
        run.open_window()
        run.prepare()
        run.swap(3)
    assert run.kept == [6, 7, 8, 9, 10, 11, 12], "it is pruned like any other"


def test_pruner_goes_on_where_a_file_cannot_be_removed(run, caplog):
    run.prune = ModelPruner(run.folder, _Damaged(), keep=2)
    run.swap(4)
    assert "earlier weights cannot be removed" in caplog.text
    assert run.kept == [0, 1, 2, 3, 4]


class _Damaged:
    """A store that cannot be read."""

    def read_models(self, _stream):
        raise OSError(5, "the disk is broken")


def test_windows_are_recorded_as_they_open(run):
    keeper = WindowKeeper(run.store)
    for window in (3, 4):
        keeper(Batch(0, (ev.WindowOpened(window * 10, window, window * 10 + 10),)), None)
    assert run.store.read_windows() == [(3, 30, 40), (4, 40, 50)]


class Transfer:
    """What ``WeightTransfer`` can go back to, by its rules."""

    def __init__(self, run):
        self.run, self.evaluated, self.earlier = run, 0, None

    def label(self, labelled):
        evaluated, self.evaluated = self.evaluated, self.run.version
        self.earlier = None if evaluated == self.evaluated else evaluated
        self.run.prepare(labelled)

    def roll_back(self):
        if self.earlier is None:
            return
        of, self.earlier = self.earlier, None
        assert of in [row.version for row in self.run.store.read_models(CAM)]
        self.run.roll_back(of)
        self.evaluated = self.run.version


@given(st.lists(st.sampled_from(["swap", "window", "label", "no label", "roll back"]), max_size=40))
@example(["label", "swap", "swap", "swap", "window", "window", "label", "swap", "roll back"])
@settings(max_examples=60)
def test_pruner_never_removes_what_a_roll_back_needs(actions):
    with TemporaryDirectory() as folder, StateStore(Path(folder) / "state.sqlite") as store:
        run = Run(RunFolder.create_numbered(Path(folder), "run"), store)
        transfer = Transfer(run)
        run.step()
        for action in actions:
            match action:
                case "swap":
                    run.swap()
                case "window":
                    run.open_window()
                case "label" | "no label":
                    transfer.label(labelled=action == "label")
                case "roll back":
                    transfer.roll_back()
            for row in store.read_models(CAM):
                assert (run.folder.path / row.path).is_file()
