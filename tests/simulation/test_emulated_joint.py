"""Joint retrainings on virtual time: measured on a partner's labels, served there, and remembered."""

from contextlib import ExitStack
from dataclasses import replace

import pytest
from bars import CARD, FPS, NAMES, SIDE, WINDOW_US, Golden, camera_of, knowing, turned_around
from starts import start_retraining

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.units import JobId, StreamId
from ekya.pipeline.settings import PreparationSettings
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.simulation.emulated.world import EmulatedWorld
from ekya.simulation.executor import VirtualExecutor

ONE, OTHER, JOB = StreamId("one"), StreamId("other"), JobId(5)
SETTINGS = PreparationSettings(NAMES, SIDE, FPS, 40, 77)
START = replace(start_retraining(ONE, RetrainConfig(2, 8, 0, 0, 1.0), job=JOB, window=1), partners=(OTHER,))

good = pytest.fixture(knowing, scope="module")


class Pair:
    """Two cameras of the emulated world, driven by hand; ``labelled`` ones have labels in window 1."""

    def __init__(self, root, models, stack, labelled=(ONE, OTHER)):
        folder = RunFolder.create(root, "joint")
        self.store = stack.enter_context(StateStore(folder.state))
        self.cameras = {
            stream: camera_of(folder, self.store, stream, model, SETTINGS)
            for stream, model in zip((ONE, OTHER), models, strict=True)
        }
        self.executor = VirtualExecutor(EmulatedWorld(self.cameras, Golden(), CARD, 0, 2000), 0)
        self.executor.execute([cmd.SetInference(one, InferenceConfig(1, SIDE), 500) for one in self.cameras])
        while self.executor.now_us < WINDOW_US:
            self.executor.wait(WINDOW_US)
        asked = tuple(cmd.PrepareStream(stream, (), ()) for stream in labelled)
        self.executor.execute([cmd.BeginPreparation(1, 1000, asked)])
        self.until(ev.PreparationEnded)
        self.executor.execute([cmd.EndPreparation(1)])

    def until(self, kind):
        """Returns the events up to the first of a kind, which is the last of them."""
        events = []
        while not any(isinstance(event, kind) for event in events):
            events.extend(self.executor.wait(2 * WINDOW_US).events)
        return events


def test_weights_of_a_joint_retraining_serve_a_partner(tmp_path, good):
    with ExitStack() as stack:
        pair = Pair(tmp_path, (good, turned_around(good)), stack)
        pair.executor.execute([START])
        told = [one for one in pair.until(ev.RetrainFinished) if isinstance(one, ev.RetrainProgress)]
        assert [len(one.partner_accuracies) for one in told] == [1, 1]
        assert min(one.partner_accuracies[0] for one in told) > 0.5, "the bars are the same"
        partner = pair.cameras[OTHER]
        assert partner.memory.size == 0
        pair.executor.execute([cmd.ServeModel(ONE, JOB, 2), cmd.ServeModel(OTHER, JOB, 2, of=ONE)])
        swaps = [one for one in pair.executor.wait(WINDOW_US + 1).events if isinstance(one, ev.ModelSwapped)]
        assert [(one.stream, one.version, one.job) for one in swaps] == [(ONE, 1, JOB), (OTHER, 1, JOB)]
        assert swaps[1].validation_accuracy == max(one.partner_accuracies[0] for one in told)
        assert partner.model is pair.cameras[ONE].model
        assert partner.memory.size > 0, "it has not trained, and must not forget the scene either"
        assert pair.store.models(OTHER)[-1].validation_accuracy == swaps[1].validation_accuracy


def test_partner_without_labels_is_neither_measured_nor_served(tmp_path, good):
    with ExitStack() as stack:
        pair = Pair(tmp_path, (good, turned_around(good)), stack, labelled=(ONE,))
        pair.executor.execute([START])
        told = [one for one in pair.until(ev.RetrainFinished) if isinstance(one, ev.RetrainProgress)]
        assert [one.partner_accuracies for one in told] == [(), ()]
        pair.executor.execute([cmd.ServeModel(OTHER, JOB, 2, of=ONE)])
        events = pair.executor.wait(WINDOW_US + 1).events
        assert not [one for one in events if isinstance(one, ev.ModelSwapped)]
