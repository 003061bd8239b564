"""Tests of starting from another camera's model on virtual time: tried on first labels, served, retrained."""

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from bars import CARD, FPS, NAMES, SIDE, WINDOW_US, Golden, camera_of, knowing, turned_around
from starts import start_retraining

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.units import ModelVersion, StreamId
from ekya.models.edge.architecture_table import Start
from ekya.models.edge.checkpoints import to_bytes
from ekya.pipeline.settings import PreparationSettings
from ekya.planning.adaptation.shadow_gate import why_adopted
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.simulation.emulated.world import EmulatedWorld
from ekya.simulation.executor import VirtualExecutor

OLD, NEW = StreamId("old"), StreamId("new")
SETTINGS = PreparationSettings(NAMES, SIDE, FPS, 40, 77, start=Start.BEST)


good = pytest.fixture(knowing, scope="module")


class World:
    """Two cameras of the emulated world, driven by hand; the base model is of no use."""

    def __init__(self, root, base, stack, settings=SETTINGS):
        folder = RunFolder.create(root, "adopts")
        self.store = stack.enter_context(StateStore(folder.state))
        self.cameras = {
            stream: camera_of(folder, self.store, stream, base, settings) for stream in (NEW, OLD)
        }
        self.executor = VirtualExecutor(EmulatedWorld(self.cameras, Golden(), CARD, 0, 2000), 0)
        self.executor.execute_commands(
            [cmd.SetInference(one, InferenceConfig(1, SIDE), 500) for one in self.cameras]
        )

    def serve(self, stream, model):
        """Makes ``model`` serve, as if a retraining had produced it."""
        camera = self.cameras[stream]
        camera.version = ModelVersion(camera.version + 1)
        camera.model = model
        camera.inference.swap(model, camera.version, self.executor.now_us)
        camera.models.add_model(camera.version, to_bytes(model), 1, None, 0.9, self.executor.now_us)

    def prepared(self, window, *streams):
        """Prepares these streams; returns the events by type and stream. The preparation is not ended yet."""
        while self.executor.now_us < window * WINDOW_US:
            self.executor.wait(window * WINDOW_US)
        asked = tuple(cmd.PrepareStream(stream, (), ()) for stream in streams)
        self.executor.execute_commands([cmd.BeginPreparation(window, 1000, asked)])
        events = []
        while not any(isinstance(event, ev.PreparationEnded) for event in events):
            events.extend(self.executor.wait((window + 1) * WINDOW_US).events)
        return {(type(event), getattr(event, "stream", None)): event for event in events}

    def adopt(self, offer, window):
        """Carries out what the loop answers to an offer; returns the event of its effect, if any."""
        adopt = cmd.AdoptModel(NEW, offer.of, offer.version, offer.validation_accuracy, "better")
        self.executor.execute_commands([adopt, cmd.EndPreparation(window)])
        events = self.executor.wait((window + 1) * WINDOW_US).events
        return next((event for event in events if isinstance(event, ev.ModelAdopted)), None)


def test_camera_with_the_base_model_adopts_a_better_one_and_retrains_from_it(tmp_path, good):
    with ExitStack() as stack:
        world = World(tmp_path, turned_around(good), stack)
        world.serve(OLD, good)
        events = world.prepared(1, NEW, OLD)
        assert (ev.ModelOffered, OLD) not in events, "it has weights of its own"
        offer = events[ev.ModelOffered, NEW]
        assert (offer.of, offer.version, offer.window) == (OLD, 1, 1)
        assert offer.compared.old < 0.5 < offer.compared.new
        assert why_adopted(offer.compared)
        assert offer.gpu_s == CARD.forward_gpu_s(2 * offer.compared.objects, SIDE)
        assert offer.t_us - events[ev.LabelsReady, NEW].t_us == round(offer.gpu_s * 1e6)
        adopted = world.adopt(offer, 1)
        assert (adopted.stream, adopted.version, adopted.of, adopted.of_version) == (NEW, 1, OLD, 1)
        assert world.cameras[NEW].model is good
        base, lent = world.store.models(NEW)
        assert lent.path == world.store.models(OLD)[1].path != base.path
        world.executor.execute_commands([start_retraining(NEW, RetrainConfig(1, 8, 0, 0, 1.0), window=1)])
        while world.executor.world.retrainings[NEW].best is None:
            world.executor.wait(2 * WINDOW_US)
        trained = world.executor.world.retrainings[NEW].best.model
        assert torch.nn.functional.cosine_similarity(trained.head.weight, good.head.weight).min() > 0.5
        assert world.prepared(2, NEW)[ev.LabelsReady, NEW].compared is not None, "it may still go back"


def test_camera_keeps_a_base_model_that_is_as_good(tmp_path, good):
    with ExitStack() as stack:
        world = World(tmp_path, good, stack)
        world.serve(OLD, turned_around(good))
        offer = world.prepared(1, NEW)[ev.ModelOffered, NEW]
        assert offer.compared.new < 0.5 < offer.compared.old
        assert why_adopted(offer.compared) is None


def test_camera_that_starts_from_the_base_model_tries_no_other(tmp_path, good):
    with ExitStack() as stack:
        world = World(tmp_path, turned_around(good), stack, replace(SETTINGS, start=Start.BASE))
        world.serve(OLD, good)
        assert (ev.ModelOffered, NEW) not in world.prepared(1, NEW)


def test_offered_model_is_adopted_although_its_camera_has_swapped_since(tmp_path, good):
    with ExitStack() as stack:
        world = World(tmp_path, turned_around(good), stack)
        world.serve(OLD, good)
        offer = world.prepared(1, NEW)[ev.ModelOffered, NEW]
        world.serve(OLD, turned_around(good))
        adopted = world.adopt(offer, 1)
        assert (adopted.version, adopted.of_version) == (1, 1)
        assert world.cameras[NEW].model is good
        lent = world.store.models(NEW)[-1]
        assert lent.path == world.store.models(OLD)[1].path
        assert lent.validation_accuracy == offer.validation_accuracy != 0.9


def test_camera_that_rolls_back_to_the_base_model_tries_others_again(tmp_path, good):
    with ExitStack() as stack:
        base = turned_around(good)
        world = World(tmp_path, base, stack)
        world.serve(OLD, good)
        for window in (1, 3):
            offer = world.prepared(window, NEW)[ev.ModelOffered, NEW]
            assert world.adopt(offer, window).version == window
            events = world.prepared(window + 1, NEW, OLD)
            assert {stream for kind, stream in events if kind is ev.ModelOffered} == set()
            assert events[ev.LabelsReady, NEW].compared is not None
            world.executor.execute_commands([cmd.RollBack(NEW, "worse"), cmd.EndPreparation(window + 1)])
            assert world.cameras[NEW].model is base
        rows = world.store.models(NEW)
        assert [row.version for row in rows] == [0, 1, 2, 3, 4]
        assert [row.path == rows[0].path for row in rows] == [True, False, True, False, True]
        world.serve(OLD, base)
        assert (ev.ModelOffered, OLD) not in world.prepared(5, OLD), "nobody has weights of its own to lend"
