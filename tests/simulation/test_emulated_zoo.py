"""Kept models on virtual time: tried on the first labels of a scene that returns, and served."""

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from bars import CARD, FPS, NAMES, SIDE, WINDOW_US, Golden, camera_of, knowing, turned_around

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig
from ekya.core.units import ModelVersion, StreamId
from ekya.core.weights import KeptModel, Scene
from ekya.models.edge.checkpoints import to_bytes
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.zoo_folder import ZooFolder, ZooIndex, ZooKind
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.simulation.emulated.world import EmulatedWorld
from ekya.simulation.executor import VirtualExecutor

CAM = StreamId("cam")
SETTINGS = PreparationSettings(NAMES, SIDE, FPS, 40, 77, describes=True)


good = pytest.fixture(knowing, scope="module")


class World:
    """A camera of the emulated world with a zoo, driven by hand; the base model is of no use."""

    def __init__(self, root, base, stack, kept=(), settings=SETTINGS):
        folder = RunFolder.create_numbered(root, "keeps")
        folder.zoo.mkdir()
        self.store = stack.enter_context(StateStore(folder.state))
        self.camera = camera_of(folder, self.store, CAM, base, settings)
        lock = stack.enter_context((folder.zoo / "lock").open("ab"))
        self.zoo = ZooFolder(folder.zoo, ZooIndex(1, ZooKind("tiny", NAMES, SIDE), ()), lock)
        for model, of in kept:
            path = root / "kept.safetensors"
            path.write_bytes(to_bytes(of))
            self.zoo.keep_model(model, path, ())
            path.unlink()
        world = EmulatedWorld({CAM: self.camera}, Golden(), CARD, 0, 2000, zoo=self.zoo)
        self.executor = VirtualExecutor(world, 0)
        self.begun = self.executor.wait(1).events
        self.executor.execute_commands([cmd.SetInference(CAM, InferenceConfig(1, SIDE), 500)])

    def prepared(self, window, candidates, since_us=None, kept=None):
        """Prepares the camera; returns the events by type. The preparation is not ended yet."""
        at_us = window * WINDOW_US if since_us is None else since_us + WINDOW_US // 2
        while self.executor.now_us < at_us:
            self.executor.wait(at_us)
        asked = cmd.PrepareStream(CAM, (), (), since_us, candidates, kept)
        self.executor.execute_commands([cmd.BeginPreparation(window, 1000, (asked,))])
        events = []
        while not any(isinstance(event, ev.PreparationEnded) for event in events):
            events.extend(self.executor.wait((window + 2) * WINDOW_US).events)
        return {type(event): event for event in events}


def model_of(number, picture=(), accuracy=0.9):
    return KeptModel(number, StreamId("other"), ModelVersion(4), 7, accuracy, Scene(picture, (), 40))


def test_kept_model_of_another_run_serves_at_once(tmp_path, good):
    with ExitStack() as stack:
        base = turned_around(good)
        world = World(tmp_path, base, stack, kept=[(model_of(1), base), (model_of(2), good)])
        assert [event.models for event in world.begun if isinstance(event, ev.ZooOpened)] == [
            (model_of(1), model_of(2))
        ]
        told = world.prepared(1, (1, 2))
        assert len(told[ev.LabelsReady].picture) == 48
        offer = told[ev.ModelOffered]
        assert (offer.of, offer.version, offer.kept) == ("other", 4, 2)
        assert offer.compared.old < 0.5 < offer.compared.new
        assert offer.expected.old < offer.expected.new < offer.compared.new, "nothing was known of it here"
        assert offer.gpu_s == CARD.forward_gpu_s(3 * offer.compared.objects, SIDE)
        adopt = cmd.AdoptModel(CAM, offer.of, offer.version, offer.validation_accuracy, "better", offer.kept)
        world.executor.execute_commands([adopt, cmd.EndPreparation(1)])
        events = world.executor.wait(2 * WINDOW_US).events
        (adopted,) = [event for event in events if isinstance(event, ev.ModelAdopted)]
        assert (adopted.version, adopted.kept) == (1, 2)
        assert torch.equal(world.camera.model.head.weight, good.head.weight)
        assert world.store.read_models(CAM)[-1].version == 1
        assert [model.number for model in world.zoo.models] == [1, 2]
        world.zoo.record_use(1)
        assert [model.number for model in world.zoo.models] == [2, 1]


def test_kept_model_of_the_scene_is_expected_to_do_better_on_few_objects(tmp_path, good):
    with ExitStack() as stack:
        world = World(tmp_path, good, stack, kept=[(model_of(1), good)])
        picture = world.prepared(1, ())[ev.LabelsReady].picture
    with ExitStack() as stack:
        world = World(tmp_path, good, stack, kept=[(model_of(1, picture), good)])
        told = world.prepared(0, (1,), since_us=WINDOW_US // 4)
        offer = told[ev.ModelOffered]
        assert offer.compared.new == offer.compared.old
        assert offer.expected.new > offer.expected.old


def test_serving_model_that_is_good_enough_for_its_window_tries_none(tmp_path, good):
    with ExitStack() as stack:
        world = World(tmp_path, good, stack, kept=[(model_of(1), turned_around(good))])
        told = world.prepared(1, (1,))
        assert told[ev.LabelsReady].serving_accuracy >= 0.95
        assert ev.ModelOffered not in told


def test_kept_model_whose_file_is_damaged_is_left_out(tmp_path, good, caplog):
    with ExitStack() as stack:
        world = World(tmp_path, turned_around(good), stack, kept=[(model_of(1), good)])
        world.zoo.file(1).write_bytes(b"?")
        assert ev.ModelOffered not in world.prepared(1, (1, 9))
        assert "this kept model is left out" in caplog.text


def test_weights_that_serve_are_kept_with_their_file(tmp_path, good):
    with ExitStack() as stack:
        world = World(tmp_path, good, stack)
        model = replace(model_of(1), stream=CAM, version=ModelVersion(0))
        weights = to_bytes(good)
        world.camera.models.file(ModelVersion(0)).write_bytes(weights)
        world.executor.execute_commands([cmd.KeepModel(CAM, model, ())])
        assert world.zoo.read(1) == weights
