"""Tests of a trainer that runs out of memory, on virtual time: its γ is dropped, and all else goes on."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from bars import CARD, FPS, FRAMES, NAMES, SIDE, WINDOW_US, Golden, frames, tiny_trunk

import ekya.simulation.emulated.world
from ekya.control.loop import run_loop
from ekya.control.options import LoopOptions
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.gpus import DidNotFit
from ekya.core.profile import Family, Profiler, family_of
from ekya.core.units import BASE_VERSION, StreamId
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.models.edge.model import build_edge_model
from ekya.models.proposer import GivenBoxes
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.microprofile import MicroProfile
from ekya.pipeline.collector import WindowCollector
from ekya.pipeline.inference import Classifier, FrameSteps
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import retraining_of
from ekya.planning.profiling.inference_profile import inference_options
from ekya.planning.schedulers.registry import make_scheduler
from ekya.simulation.emulated.camera import EmulatedCamera
from ekya.simulation.emulated.stream import EmulatedStream
from ekya.simulation.emulated.world import EmulatedWorld
from ekya.simulation.executor import VirtualExecutor

CAMS = (StreamId("cam-1"), StreamId("cam-2"))
BLOCK, HEAD = RetrainConfig(4, 8, 0, 1, 1.0), RetrainConfig(4, 8, 0, 0, 1.0)
LAMBDA = InferenceConfig(1, SIDE)
OPTIONS = LoopOptions(
    window_us=WINDOW_US,
    windows=3,
    capacity_milli=2000,
    quantum_milli=100,
    steal_milli=100,
    min_accuracy=0.0,
    preparation_share_milli=1000,
    preparation_us=WINDOW_US // 2,
    checkpoint_delay_us=1000,
    retrain_configs=(HEAD, BLOCK),
    inference_configs=(LAMBDA,),
    # So little that both are expected to end in a window.
    family_costs=tuple(
        replace(cost, prepare_gpu_s=0.0, epoch_gpu_s=cost.epoch_gpu_s / 100)
        for cost in CARD.family_costs((HEAD, BLOCK), SIDE)
    ),
)
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    MemoryError("no room"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
]


@pytest.fixture(autouse=True)
def tiny():
    torch.set_num_threads(1)
    EDGE_MODELS["tiny"] = tiny_trunk
    yield
    del EDGE_MODELS["tiny"]


class Records:
    """Record that keeps nothing."""

    def add(self, *_):
        pass

    add_labels = add_model = add


class RunHistory:
    """Journal in memory."""

    def __init__(self):
        self.events, self.commands = [], []

    def record_batch(self, batch):
        self.events.extend(batch.events)

    def record_decision(self, now_us, plan, commands):
        self.commands.extend(commands)

    def of(self, kind):
        return [one for one in (*self.events, *self.commands) if isinstance(one, kind)]


def camera(place):
    base = build_edge_model(NAMES, 0, 3, "tiny")
    settings = PreparationSettings(NAMES, SIDE, FPS, 40, 77 + place)
    collector = WindowCollector(settings, WINDOW_US)
    steps = FrameSteps(GivenBoxes(), collector)
    return EmulatedCamera(
        settings=settings,
        inference=EmulatedStream(frames(3 * FRAMES), steps, CARD, base, partial(Classifier, classes=NAMES)),
        frames=Records(),
        models=Records(),
        model=base,
        options=inference_options((LAMBDA,), (), {SIDE: 0.01}, FPS),
        version=BASE_VERSION,
        memory=ExemplarMemory(),
    )


def played(scheduler="uniform", options=OPTIONS):
    """Returns what a run told; ``uniform`` takes the dearest γ that its share can finish."""
    told = RunHistory()
    cameras = {cam: camera(place) for place, cam in enumerate(CAMS)}
    executor = VirtualExecutor(EmulatedWorld(cameras, Golden(), CARD, 0, options.capacity_milli), 1000)
    chosen = make_scheduler(scheduler)
    run_loop(executor, told, chosen.plan, chosen.needs, options, lambda *_: None)
    return told


def breaks_on_blocks(error, after_epochs):
    def made(start, config, *rest, **more):
        real = retraining_of(start, config, *rest, **more)
        if not config.trainable_blocks:
            return real
        run = real.run_epoch

        def run_epoch():
            if real.epochs_done >= after_epochs:
                raise error
            return run()

        real.run_epoch = run_epoch
        return real

    return made


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: str(error)[:18])
def test_out_of_memory_retraining_gives_way_to_smaller_gamma(error, monkeypatch):
    monkeypatch.setattr(ekya.simulation.emulated.world, "retraining_of", breaks_on_blocks(error, 0))
    told = played()
    short, failed, starts = told.of(ev.MemoryShort), told.of(ev.RetrainFailed), told.of(cmd.StartRetraining)
    assert short
    assert {one.what for one in short} == {DidNotFit.from_config(BLOCK)}
    assert all(str(error) in one.reason for one in failed)
    assert [one.job for one in failed] == [one.job for one in starts if one.config == BLOCK]
    for one in short:
        later = [s for s in starts if (s.stream, s.window) == (one.stream, one.window)]
        assert [s.config for s in later] == [BLOCK, HEAD]
    finished = {one.job for one in told.of(ev.RetrainFinished)}
    assert finished == {one.job for one in starts if one.config == HEAD}
    assert [one.index for one in told.of(ev.WindowClosed)] == [0, 1, 2]


def test_out_of_memory_after_epochs_best_weights_serve(monkeypatch):
    monkeypatch.setattr(ekya.simulation.emulated.world, "retraining_of", breaks_on_blocks(ERRORS[0], 2))
    told = played()
    starts = told.of(cmd.StartRetraining)
    broken = {one.job for one in told.of(ev.RetrainFailed)}
    assert broken
    assert len({(one.stream, one.window) for one in starts}) == len(starts)
    assert {one.job for one in told.of(ev.ModelSwapped)} & broken


def test_other_error_of_a_retraining_is_raised(monkeypatch):
    broken = RuntimeError("shapes do not fit")
    monkeypatch.setattr(ekya.simulation.emulated.world, "retraining_of", breaks_on_blocks(broken, 0))
    with pytest.raises(RuntimeError, match="shapes"):
        played()


def test_out_of_memory_trial_drops_its_family(monkeypatch):
    run = MicroProfile.run

    def breaks(trial, *rest):
        if trial.family.trainable_blocks:
            raise ERRORS[0]
        return run(trial, *rest)

    monkeypatch.setattr(MicroProfile, "run", breaks)
    told = played("thief", replace(OPTIONS, profiler=Profiler.PAPER))
    assert {one.what for one in told.of(ev.MemoryShort)} == {DidNotFit(family_of(BLOCK), 0.0)}
    assert {one.curve.family for one in told.of(ev.ProfileReady)} == {Family(0, 0, 8)}
    assert {one.config for one in told.of(cmd.StartRetraining)} == {HEAD}
    assert not told.of(ev.RetrainFailed)
    assert len(told.of(ev.WindowClosed)) == 3
