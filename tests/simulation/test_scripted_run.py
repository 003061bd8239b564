"""Tests of a fleet with scripts in the emulated world: real frames, a tiny model, real training."""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import pytest
import torch
from bars import FPS, NAMES, QUICK, SIDE, TIGHT, Golden, camera_of, frames, tiny_trunk

from ekya.control.loop import run_loop
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.units import StreamId
from ekya.models.edge.model import EDGE_MODELS, build_edge_model
from ekya.pipeline.run_writer import merge_frames
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.setup import misfortunes
from ekya.planning.profiling.inference_profile import inference_options
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import FileJournal, read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.results.storage.run_tables import read_predictions, read_reference
from ekya.simulation.emulated.world import EmulatedWorld
from ekya.simulation.executor import VirtualExecutor
from ekya.streams.ingest.playing import PlayConfig, PlayedSource

S = 1_000_000
WINDOWS = 5
CAM_1, CAM_2, CAM_3 = (StreamId(f"cam-{number}") for number in (1, 2, 3))
SCRIPTS = {
    CAM_1: [{"event": "lost", "at_s": 4, "for_s": 3}, {"event": "lost", "at_s": 12, "for_s": 99}],
    CAM_2: [{"event": "night", "at_s": 6, "for_s": 3}, {"event": "burst", "at_s": 9, "for_s": 2}],
    CAM_3: [{"event": "joins", "at_s": 4.5}],
}
SPEED = 1.0
GAMMAS = tuple(RetrainConfig(epochs, 8, 0, 0, 1.0) for epochs in (1, 3))
LAMBDAS = (InferenceConfig(1, SIDE), InferenceConfig(3, SIDE))
OPTIONS = replace(
    TIGHT, windows=WINDOWS, retrain_configs=GAMMAS, inference_configs=LAMBDAS, last_join_us=4_500_000
)


@dataclass
class Bars:
    """The street of bars as a source."""

    fps: float = FPS
    damaged: int = 0

    def frames(self):
        return frames(400)


@dataclass
class Config:
    """Settings of a stream that ``misfortunes`` reads."""

    id: StreamId
    play: PlayConfig


@dataclass
class RunHistory:
    folder: RunFolder
    turns: list = field(default_factory=list)

    def events(self, kind):
        return [event for turn in self.turns for event in turn.events if isinstance(event, kind)]

    def commands(self, kind):
        return [(turn.now_us, one) for turn in self.turns for one in turn.commands if isinstance(one, kind)]

    def shares_at(self, t_us):
        """Returns the latest commanded inference shares of the streams that are not lost."""
        shares = {}
        for turn in self.turns:
            if turn.now_us > t_us:
                break
            for event in turn.events:
                if isinstance(event, ev.StreamLost):
                    shares.pop(event.stream, None)
            shares |= {
                one.stream: one.share_milli for one in turn.commands if isinstance(one, cmd.SetInference)
            }
        return shares


def emulate(root, scheduler="thief"):
    folder = RunFolder.create_numbered(root, "scripted")
    base = build_edge_model(NAMES, 0, 3, "tiny")
    cameras = {}
    with ExitStack() as stack:
        store = stack.enter_context(StateStore(folder.state))
        journal = FileJournal(folder.journal, scheduler, OPTIONS)
        stack.callback(journal.close)
        for place, (stream, script) in enumerate(SCRIPTS.items()):
            play = PlayConfig(speed=SPEED, script=script)
            settings = PreparationSettings(NAMES, SIDE, FPS, 20, 70 + place)
            cameras[stream] = camera_of(
                folder,
                store,
                stream,
                base,
                settings,
                shown=PlayedSource(Bars(), play).frames(),
                options=inference_options(LAMBDAS, (), {SIDE: 0.005}, FPS),
                joins_us=play.joins_us,
                misfortunes=misfortunes(Config(stream, play)),
            )
        world = EmulatedWorld(cameras, Golden(), QUICK, 0, OPTIONS.capacity_milli)
        executor = VirtualExecutor(world, S // 20)
        chosen = make_scheduler(scheduler)
        run_loop(executor, journal, chosen.plan, chosen.needs, OPTIONS, lambda _batch, _turn: None)
        world.finish(executor.now_us)
    merge_frames(folder, SCRIPTS)
    return RunHistory(folder, read_journal(folder.journal)[2])


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    torch.set_num_threads(1)
    EDGE_MODELS["tiny"] = tiny_trunk
    yield emulate(tmp_path_factory.mktemp("runs"))
    del EDGE_MODELS["tiny"]


def test_script_events_reach_the_loop(told):
    assert [(one.t_us, one.stream) for one in told.events(ev.StreamAdded)] == [
        (0, CAM_1),
        (0, CAM_2),
        (4_500_000, CAM_3),
    ]
    assert [(one.t_us, one.stream) for one in told.events(ev.StreamLost)] == [(4 * S, CAM_1), (12 * S, CAM_1)]
    assert [(one.t_us, one.stream) for one in told.events(ev.StreamBack)] == [(7 * S, CAM_1)]


def test_script_lost_stream_lends_its_share_to_others(told):
    before, lost, back = (told.shares_at(t_us) for t_us in (4 * S - 1, 4 * S, 7 * S))
    assert set(before) == {CAM_1, CAM_2}
    assert set(lost) == {CAM_2}
    assert set(back) == {CAM_1, CAM_2, CAM_3}
    assert back[CAM_1] > 0


def test_script_joining_stream_is_prepared_from_second_window(told):
    asked = {
        one.window: {asked.stream: bool(asked.inference) for asked in one.streams}
        for _, one in told.commands(cmd.BeginPreparation)
    }
    assert asked[1] == {CAM_1: True, CAM_2: True}
    assert asked[2] == {CAM_2: False, CAM_3: True}
    labelled = [
        (one.window, one.training_crops > 0) for one in told.events(ev.LabelsReady) if one.stream == CAM_3
    ]
    assert labelled[0] == (2, True)


def test_script_frames_during_a_loss_have_no_answer(told):
    for stream in SCRIPTS:
        answers, truths = (
            read(path)
            for read, path in (
                (read_predictions, told.folder.predictions(stream)),
                (read_reference, told.folder.reference(stream)),
            )
        )
        assert list(answers.frame) == list(range(len(answers.frame))) == list(truths.frame)
        assert list(answers.t_us) == list(truths.t_us)
    times = read_predictions(told.folder.predictions(CAM_1)).t_us
    assert not ((times >= 4 * S) & (times < 7 * S)).any()
    assert times.max() < 12 * S
    assert read_predictions(told.folder.predictions(CAM_3)).t_us.min() == 4_500_000


def test_script_burst_multiplies_frames(told):
    times = read_predictions(told.folder.predictions(CAM_2)).t_us
    in_burst = ((times >= 9 * S) & (times < 11 * S)).sum()
    assert in_burst == pytest.approx(3 * 2 * FPS, abs=1)
    assert ((times >= 11 * S) & (times < 13 * S)).sum() == pytest.approx(2 * FPS, abs=1)


def test_script_two_runs_give_the_same_bytes(told, tmp_path):
    assert emulate(tmp_path).folder.journal.read_bytes() == told.folder.journal.read_bytes()
