"""Tests of rolling back: new labels compare weights with the earlier ones, which serve again if better."""

import gc
import weakref
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from bars import (
    CARD,
    FPS,
    NAMES,
    SIDE,
    WINDOW_US,
    Golden,
    camera_of,
    knowing,
    turned_around,
)
from starts import start_retraining

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.units import ModelVersion, StreamId
from ekya.models.edge.model import clone
from ekya.pipeline.settings import PreparationSettings
from ekya.planning.adaptation.shadow_gate import why_back
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.simulation.emulated.world import EmulatedWorld
from ekya.simulation.executor import VirtualExecutor

CAM = StreamId("cam")
SETTINGS = PreparationSettings(NAMES, SIDE, FPS, 40, 77)
EVERY = InferenceConfig(1, SIDE)


good = pytest.fixture(knowing, scope="module")


class World:
    """One camera of the emulated world, driven by hand."""

    def __init__(self, root, model, stack):
        folder = RunFolder.create_numbered(root, "back")
        self.store = stack.enter_context(StateStore(folder.state))
        self.camera = camera_of(folder, self.store, CAM, model, SETTINGS)
        self.executor = VirtualExecutor(EmulatedWorld({CAM: self.camera}, Golden(), CARD, 0, 2000), 0)
        self.executor.execute_commands([cmd.SetInference(CAM, EVERY, 1000)])

    def until(self, t_us):
        while self.executor.now_us < t_us:
            self.executor.wait(t_us)

    def labels(self, window):
        """Labels the previous window and returns the event; the preparation is not ended yet."""
        self.until(window * WINDOW_US)
        self.executor.execute_commands(
            [cmd.BeginPreparation(window, 1000, (cmd.PrepareStream(CAM, (), ()),))]
        )
        events = []
        while not any(isinstance(event, ev.PreparationEnded) for event in events):
            events.extend(self.executor.wait((window + 1) * WINDOW_US).events)
        return next(event for event in events if isinstance(event, ev.LabelsReady))

    def turn(self, window, *commands):
        """Executes the commands and ends the preparation."""
        self.executor.execute_commands([*commands, cmd.EndPreparation(window)])

    def serve(self, model):
        """Makes ``model`` serve, as if a retraining had produced it."""
        self.camera.version = ModelVersion(self.camera.version + 1)
        self.camera.model = model
        self.camera.inference.swap(model, self.camera.version, self.executor.now_us)


def test_roll_back_worse_weights_earlier_ones_serve_again(tmp_path, good):
    with ExitStack() as stack:
        world = World(tmp_path, good, stack)
        first = world.labels(1)
        assert first.compared is None, "nothing served before"
        world.turn(1)
        assert first.serving_accuracy > 0.8
        world.serve(turned_around(good))
        second = world.labels(2)
        assert second.compared.new < 0.5 < second.compared.old
        assert second.compared.objects >= 8
        assert second.serving_accuracy > 0.8, "the preparation goes on with what is to serve"
        assert second.gpu_s > first.gpu_s, "asking is not free"
        reason = why_back(second.compared, SETTINGS.roll_back_margin)
        world.turn(2, cmd.RollBack(CAM, reason))
        (told,) = (
            event for event in world.executor.wait(3 * WINDOW_US).events if isinstance(event, ev.RolledBack)
        )
        assert (told.version, told.of, told.stall_us) == (2, 0, 0)
        assert world.camera.model is good
        rows = world.store.read_models(CAM)
        assert [(row.version, row.path == rows[0].path) for row in rows] == [(0, True), (2, True)]
        assert world.labels(3).compared is None, "the same weights as before"
        world.turn(3)
        world.until(4 * WINDOW_US)
        versions = [row.model_version for row in world.camera.inference.take_rows()[0]]
        assert set(versions) == {0, 1, 2}
        assert versions == sorted(versions)


def test_roll_back_twice_does_nothing(tmp_path, good):
    with ExitStack() as stack:
        world = World(tmp_path, turned_around(good), stack)
        world.labels(1)
        world.turn(1)
        world.serve(good)
        compared = world.labels(2).compared
        assert compared.new > compared.old
        assert why_back(compared, 0.0) is None
        assert why_back(replace(compared, new=0.0, old=1.0), 0.5) is not None
        world.turn(2, cmd.RollBack(CAM, "asked for all the same"), cmd.RollBack(CAM, "and again"))
        assert world.camera.version == 2


def test_roll_back_next_retraining_starts_from_earlier_weights(tmp_path, good):
    with ExitStack() as stack:
        world = World(tmp_path, good, stack)
        world.labels(1)
        world.turn(1)
        world.serve(turned_around(good))
        world.labels(2)
        world.turn(2, cmd.RollBack(CAM, "worse"))
        gamma = RetrainConfig(1, 8, 0, 0, 1.0)
        world.executor.execute_commands([start_retraining(CAM, gamma, window=2)])
        events = []
        while not any(isinstance(event, ev.RetrainFinished) for event in events):
            events.extend(world.executor.wait(3 * WINDOW_US).events)
        trained = world.executor.world.retrainings[CAM].best.model
        first = good.blocks[0][0].weight
        assert torch.equal(trained.blocks[0][0].weight, first)
        assert torch.nn.functional.cosine_similarity(trained.head.weight, good.head.weight).min() > 0.5


def test_end_of_preparation_frees_earlier_weights(tmp_path, good):
    with ExitStack() as stack:
        world = World(tmp_path, good, stack)
        world.labels(1)
        world.turn(1)
        serves = clone(good)
        earlier = weakref.ref(serves)
        world.serve(serves)
        del serves
        world.labels(2)
        world.turn(2)
        world.serve(clone(good))
        assert earlier() is not None, "the next labels judge by it"
        world.labels(3)
        assert earlier() is not None, "it may serve again"
        frames = world.camera.inference.material(3, world.executor.now_us)
        assert frames.sample == frames.burst == (), "labelled"
        world.turn(3)
        gc.collect()
        assert earlier() is None
