"""Tests of a drift inside a window in the emulated world: labels of the new scene, and weights for it."""

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from bars import FPS, NAMES, QUICK, SIDE, TIGHT, Golden, camera_of, knowing, standing, turned_around

from ekya.control.journal_replay import replay_journal
from ekya.control.loop import run_loop
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.effects import FIRST_LABELS_US
from ekya.core.profile import Family, FamilyCost
from ekya.core.units import StreamId
from ekya.core.weights import SceneOf
from ekya.pipeline.run_writer import merge_frames
from ekya.pipeline.settings import PreparationSettings
from ekya.planning.profiling.inference_profile import inference_options
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import FileJournal, read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.results.storage.run_tables import read_predictions, read_reference
from ekya.simulation.emulated.world import EmulatedWorld
from ekya.simulation.executor import VirtualExecutor

S = 1_000_000
CAM = StreamId("cam")
WINDOW_US = 9 * S
FRAMES_EACH = WINDOW_US * int(FPS) // S
DRIFT_US, NOTICED_US = 12 * S, 13 * S
LAMBDAS = (InferenceConfig(1, SIDE),)
OPTIONS = replace(
    TIGHT,
    window_us=WINDOW_US,
    preparation_us=WINDOW_US * 15 // 100,
    retrain_configs=(RetrainConfig(30, 8, 0, 0, 1.0),),
    inference_configs=LAMBDAS,
    family_costs=(FamilyCost(Family(0, 0, 8), 0.0005, 0.0005),),
    reacts_to_drift=True,
)

good = pytest.fixture(knowing, scope="module")


def street():
    """Yields the standing bars; from the drift on a mark between them says that each means the next class."""
    for frame, truth in standing(270):
        drifted = frame.t_us >= DRIFT_US
        if drifted:
            frame.image[:, 18] = 255
        yield frame, replace(truth, classes=(truth.classes + int(drifted)) % len(NAMES))


class MarkedGolden(Golden):
    """Golden model that knows the mark."""

    def label_boxes(self, items):
        """Returns the class of each box."""
        return [
            (of + int(item.picture[0, 18, 0] == 255)) % len(NAMES)
            for item, of in zip(items, super().label_boxes(items), strict=True)
        ]


def emulate(root, base, options, scheduler="thief", notices=True):
    """Runs one camera whose monitor notices the drift, or not; returns folder, steps and labels."""
    folder = RunFolder.create_numbered(root, "drift")
    settings = PreparationSettings(NAMES, SIDE, FPS, 60, 71, keeps_newest=True)
    noticed = ev.DriftDetected(NOTICED_US, CAM, 1, DRIFT_US, "told by the test")
    scheduler = make_scheduler(scheduler)
    with ExitStack() as stack:
        store = stack.enter_context(StateStore(folder.state))
        journal = FileJournal(folder.journal, "thief", options)
        stack.callback(journal.close)
        camera = camera_of(
            folder,
            store,
            CAM,
            base,
            settings,
            shown=street(),
            window_us=WINDOW_US,
            card=QUICK,
            options=inference_options(LAMBDAS, (), {SIDE: 0.005}, FPS),
            misfortunes=(noticed,) if notices else (),
        )
        world = EmulatedWorld({CAM: camera}, MarkedGolden(), QUICK, 0, options.capacity_milli)
        executor = VirtualExecutor(world, S // 20)
        run_loop(executor, journal, scheduler.plan, scheduler.needs, options, lambda *_: None)
        world.finish(executor.now_us)
        labelled = store.read_labels(CAM)
    merge_frames(folder, [CAM])
    return folder, read_journal(folder.journal)[2], labelled


@pytest.fixture(scope="module")
def reacted(good, tmp_path_factory):
    return emulate(tmp_path_factory.mktemp("reacted"), good, OPTIONS)


@pytest.fixture(scope="module")
def pooled(good, tmp_path_factory):
    """Window 2 is labelled too, in the scene that the reaction has labelled before."""
    options = replace(OPTIONS, pools_labels=True)
    return emulate(tmp_path_factory.mktemp("pooled"), good, options, scheduler="ekya")


@pytest.fixture(scope="module")
def ignorant(good, tmp_path_factory):
    bad = turned_around(good)
    return emulate(tmp_path_factory.mktemp("ignorant"), bad, OPTIONS, scheduler="ekya", notices=False)


@pytest.fixture(scope="module")
def waited(good, tmp_path_factory):
    return emulate(tmp_path_factory.mktemp("waited"), good, replace(OPTIONS, reacts_to_drift=False))


def events(steps, kind):
    return [event for step in steps for event in step.events if isinstance(event, kind)]


def accuracy(folder, from_us, until_us):
    """Returns the part of the objects that were named right in the analysed frames of a part of the run."""
    answers, truths = read_predictions(folder.predictions(CAM)), read_reference(folder.reference(CAM))
    rows = np.flatnonzero(answers.analysed & (answers.t_us >= from_us) & (answers.t_us < until_us))
    named, true = (
        np.concatenate([of.classes[of.offsets[row] : of.offsets[row + 1]] for row in rows])
        for of in (answers, truths)
    )
    return float((named == true).mean())


def test_drift_is_labelled_in_the_new_scene_and_answered_in_the_same_window(reacted):
    folder, steps, _ = reacted
    before, after = (one for one in events(steps, ev.LabelsReady) if one.window == 1)
    assert (before.since_us, after.since_us) == (None, DRIFT_US)
    assert before.serving_accuracy > 0.9
    assert after.serving_accuracy < 0.1
    assert min(after.training_crops, after.validation_crops) > 4
    swaps = [one for one in events(steps, ev.ModelSwapped) if one.t_us < 2 * WINDOW_US]
    swapped = next(one for one in swaps if one.t_us > NOTICED_US)
    assert NOTICED_US < swapped.t_us < NOTICED_US + 3 * S
    assert accuracy(folder, DRIFT_US, NOTICED_US) < 0.1
    assert accuracy(folder, swapped.t_us + S // 10, 2 * WINDOW_US) > 0.6


def test_camera_whose_model_knows_nothing_is_adapted_in_its_first_seconds(ignorant):
    folder, steps, _ = ignorant
    first = next(one for one in events(steps, ev.ModelSwapped))
    assert FIRST_LABELS_US < first.t_us < FIRST_LABELS_US + 3 * S
    assert accuracy(folder, 0, FIRST_LABELS_US) < 0.5
    assert accuracy(folder, first.t_us + S // 10, WINDOW_US) > 0.6


def test_drift_without_reaction_stays_inaccurate_for_the_window(waited):
    folder, steps, _ = waited
    assert [one.window for one in events(steps, ev.LabelsReady)] == [1, 2]
    assert accuracy(folder, DRIFT_US, 2 * WINDOW_US) < 0.1


def test_reaction_labels_only_frames_since_the_drift(reacted, waited):
    """The windows' own preparations label the same in both runs."""
    (_, _, labelled), (_, _, as_ever) = reacted, waited
    first, last = DRIFT_US * int(FPS) // S, NOTICED_US * int(FPS) // S
    newly = set(labelled.frame[labelled.frame >= FRAMES_EACH].tolist()) - set(as_ever.frame.tolist())
    assert newly
    assert all(first <= frame <= last for frame in newly)


def test_run_with_reaction_is_replayed(reacted):
    _, steps, _ = reacted
    scheduler = make_scheduler("thief")
    replayed = list(replay_journal(steps, OPTIONS, scheduler.needs, scheduler.plan))
    assert len(replayed) == len(steps)
    assert all(one.same for one in replayed)
    rounds = [
        (one.window, one.round)
        for step in steps
        for one in step.commands
        if isinstance(one, cmd.BeginPreparation)
    ]
    assert rounds == [(0, 1), (1, 0), (1, 1), (2, 0)]


def test_pooled_labels_are_of_the_scene_and_of_other_objects(pooled):
    _, steps, _ = pooled
    asked = {
        (one.window, one.round): one.streams[0].scenes
        for step in steps
        for one in step.commands
        if isinstance(one, cmd.BeginPreparation)
    }
    assert asked == {
        (0, 1): (SceneOf(CAM, 0),),
        (1, 0): (SceneOf(CAM, 0),),
        (1, 1): (SceneOf(CAM, DRIFT_US),),
        (2, 0): (SceneOf(CAM, DRIFT_US),),
    }
    tried = [(one.window, one.pooled) for one in events(steps, ev.ProfileReady)]
    with_others = [(window, of.streams) for window, of in tried if of is not None]
    assert with_others == [], "the bars stand, so the newest labels show the same objects"
    scheduler = make_scheduler("ekya")
    options = replace(OPTIONS, pools_labels=True)
    assert all(one.same for one in replay_journal(steps, options, scheduler.needs, scheduler.plan))
