"""Tests of playing a trace under a scheduler, through the loop of every world."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

import pytest

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig, RetrainConfig
from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.profile import Profiler
from ekya.core.speed import LINEAR
from ekya.core.trace import BASE_WINDOW, Origin, Trace
from ekya.core.units import FULL_GPU_MILLI, StreamId
from ekya.core.view import InferenceOption, WindowView
from ekya.planning.placement.pack import Packing
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.scheduler import Needs, Scheduler
from ekya.results.metrics.run_history import summarize_steps
from ekya.results.storage.trace_file import read_trace, write_trace
from ekya.simulation.executor import VirtualExecutor
from ekya.simulation.trace.estimates import Estimates
from ekya.simulation.trace.generate import generate_trace
from ekya.simulation.trace.generator_parameters import GeneratorParameters
from ekya.simulation.trace.simulate import Conditions, family_costs, simulate, summary_of
from ekya.simulation.trace.stream import TraceStream
from ekya.simulation.trace.world import TraceWorld

SMALL = GeneratorParameters(
    epochs=(2, 6), data_fractions=(0.5, 1.0), window_s=60.0, dearest_gpu_s=(20.0, 40.0), trial_part=0.2
)
TRACE = generate_trace(11, 3, 4, SMALL)
GOLDEN = Path(__file__).parent / "golden" / "simulate.json"


PROFILED = Needs(labels=True, inference_profile=True, micro_profile=True)


@dataclass(frozen=True)
class HalfAndHalf:
    """Scheduler that gives half of a stream's part to inference, and half to the γ with the best estimate."""

    needs: Needs = PROFILED
    name: str = "half-and-half"

    def plan(self, view: WindowView) -> Plan:
        part = view.capacity_milli // (2 * len(view.streams)) // view.quantum_milli * view.quantum_milli
        part = min(part, FULL_GPU_MILLI)
        assignments = []
        for stream in view.streams:
            options = (stream.running.option,) if stream.running else stream.retrain_options
            best = max(options, key=lambda option: (option.accuracy_after, option.config), default=None)
            fitting = [one for one in stream.inference_options if one.share_needed_milli <= part]
            inference = max(
                fitting or stream.inference_options, key=lambda one: (one.relative_accuracy, one.config)
            )
            assignments.append(
                Assignment(
                    stream.stream,
                    best.config if best else None,
                    part if best else 0,
                    inference.config,
                    part,
                    below_min=False,
                    reason="half and half",
                )
            )
        phase = Phase(tuple(assignments))
        return Plan((phase,), evaluate_phases(view, (phase,)).score)


PLAYED = simulate(TRACE, HalfAndHalf(), Conditions(gpus=1.5))


def commands_of(played, kind):
    return [command for turn in played.steps for command in turn.commands if isinstance(command, kind)]


def events_of(played, kind):
    return [event for turn in played.steps for event in turn.events if isinstance(event, kind)]


@pytest.mark.parametrize("name", ["thief", "uniform", "no-retrain"])
@pytest.mark.parametrize("gpus", [0.6, 2.0])
def test_simulate_shares_never_exceed_capacity(name, gpus):
    played = simulate(TRACE, make_scheduler(name), Conditions(gpus=gpus))
    inference: dict[str, int] = {}
    retraining: dict[str, int] = {}
    preparation = 0
    for turn in played.steps:
        for event in turn.events:
            match event:
                case ev.RetrainFinished() | ev.RetrainFailed():
                    retraining[event.stream] = 0
                case ev.PreparationEnded():
                    preparation = 0
        for command in turn.commands:
            match command:
                case cmd.SetInference():
                    inference[command.stream] = command.share_milli
                case cmd.StartRetraining() | cmd.ResizeRetraining():
                    retraining[command.stream] = command.share_milli
                case cmd.StopRetraining():
                    retraining[command.stream] = 0
                case cmd.BeginPreparation():
                    preparation = command.share_milli
                case cmd.EndPreparation():
                    preparation = 0
            held = sum(inference.values()) + sum(retraining.values()) + preparation
            assert held <= gpus * FULL_GPU_MILLI
    assert inference


def test_simulate_every_window_is_prepared_charged_and_scored():
    assert [event.index for event in events_of(PLAYED, ev.WindowOpened)] == [0, 1, 2, 3]
    labelled = {(event.stream, event.window) for event in events_of(PLAYED, ev.LabelsReady)}
    assert labelled == {(stream.stream, window) for stream in TRACE.streams for window in (1, 2, 3)}
    told = summarize_steps(PLAYED.steps)
    assert told.labelling_gpu_s == pytest.approx(9 * SMALL.labelling_gpu_s)
    assert told.profiling_gpu_s == pytest.approx(3 * SMALL.inference_profiling_gpu_s)
    assert all(len(windows) == 4 for windows in PLAYED.accuracy.values())
    assert all(0.0 < accuracy < 1.0 for windows in PLAYED.accuracy.values() for accuracy in windows)


def test_simulate_retraining_reaches_accuracy_of_trace():
    model = dict.fromkeys((stream.stream for stream in TRACE.streams), BASE_WINDOW)
    windows = {stream.stream: stream.windows for stream in TRACE.streams}
    running, progress = {}, 0
    for turn in PLAYED.steps:
        for event in turn.events:
            if isinstance(event, ev.RetrainProgress):
                _, training = running[event.job]
                epoch = training.epochs[event.epoch - 1]
                assert event.validation_accuracy == epoch.standings[0].validation_accuracy
                assert event.gpu_s == epoch.gpu_s
                progress += 1
            if isinstance(event, ev.ModelSwapped):
                model[event.stream] = running[event.job][0]
        for command in turn.commands:
            if isinstance(command, cmd.StartRetraining):
                here = windows[command.stream][command.window]
                running[command.job] = (
                    command.window,
                    here.best_training(command.config, Origin(model[command.stream])),
                )
    assert progress > 10


def test_simulate_error_changes_estimates_not_truth():
    sure, unsure = (
        simulate(TRACE, HalfAndHalf(), Conditions(gpus=1.5, error_sd=sd, seed=1)) for sd in (0.0, 0.3)
    )
    promised = [
        {
            (one.stream, one.window, one.config): one.expected_accuracy
            for one in commands_of(p, cmd.StartRetraining)
        }
        for p in (sure, unsure)
    ]
    assert promised[0] != promised[1]
    for played in (sure, unsure):
        jobs = {one.job: one for one in commands_of(played, cmd.StartRetraining)}
        for event in events_of(played, ev.RetrainFinished):
            started = jobs[event.job]
            window = next(s for s in TRACE.streams if s.stream == event.stream).windows[started.window]
            training = window.best_training(started.config, Origin(started.window - 1))
            assert event.gpu_s == training.epochs[started.config.epochs - 1].gpu_s
    assert sure.mean_accuracy > unsure.mean_accuracy


@dataclass(frozen=True)
class Overheard:
    """Scheduler ``ekya``, of which the first estimate of each γ in each window is kept."""

    trace: Trace
    heard: dict[tuple[StreamId, int, RetrainConfig], float]
    inner: Scheduler = field(default_factory=lambda: make_scheduler("ekya"))
    name: str = "ekya"

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    def plan(self, view: WindowView) -> Plan:
        for stream in view.streams:
            for option in stream.retrain_options:
                at = (stream.stream, view.now_us // self.trace.window_us, option.config)
                self.heard.setdefault(at, option.accuracy_after)
        return self.inner.plan(view)


def test_simulate_generated_estimates_miss_truth_without_bias():
    """Estimates are off by some points, in the mean by no more than three."""
    errors = []
    for seed in (31, 32):
        trace = generate_trace(seed, 6, 4)
        listening = Overheard(trace, {})
        simulate(trace, listening, Conditions(gpus=6.0, preparation_share_milli=6000))
        windows = {stream.stream: stream.windows for stream in trace.streams}
        for (stream, window, config), estimate in listening.heard.items():
            here, before = windows[stream][window], Origin(window - 1)
            epoch = here.best_training(config, before).epochs[config.epochs - 1]
            # Worse weights never serve.
            truth = max(epoch.standings[0].served_accuracy, here.start_of(before).served_accuracy)
            errors.append(estimate - truth)
    assert abs(fmean(errors)) < 0.03
    assert 0.02 < median(abs(error) for error in errors) < 0.08


def test_simulate_exact_estimates_are_told_by_an_error_of_zero():
    listening = Overheard(TRACE, {})
    simulate(TRACE, listening, Conditions(gpus=3.0, error_sd=0.0))
    windows = {stream.stream: stream.windows for stream in TRACE.streams}
    for (stream, window, config), estimate in listening.heard.items():
        training = windows[stream][window].best_training(config, Origin(window - 1))
        assert estimate == training.epochs[config.epochs - 1].standings[0].validation_accuracy
    assert listening.heard


@pytest.mark.parametrize("gpus", [0.6, 2.0])
def test_simulate_under_paper_tries_gammas_and_changes_nothing_else(gpus):
    under = Conditions(gpus=gpus).with_preset("paper")
    assert under == Conditions(gpus=gpus, profiler=Profiler.PAPER)
    played = simulate(TRACE, make_scheduler("paper"), under)
    assert events_of(played, ev.ProfileReady)
    assert events_of(played, ev.RetrainFinished)
    assert not events_of(simulate(TRACE, make_scheduler("thief"), Conditions(gpus=gpus)), ev.ProfileReady)


QUANTISED = {0, 50, 100, 250, 500, 1000}
"""Inverse powers of two, as far as quanta of 50 fill them."""


def test_simulate_without_preset_serves_checkpoints():
    played = simulate(TRACE, make_scheduler("thief"), Conditions(gpus=0.6).with_preset("thief"))
    finished = {event.job for event in events_of(played, ev.RetrainFinished)}
    stopped = {command.job for command in commands_of(played, cmd.StopRetraining)}
    served = [command.job for command in commands_of(played, cmd.ServeModel)]
    assert len(served) > len(finished | stopped)


def test_simulate_error_leaves_baselines_unchanged():
    accuracies = [
        simulate(TRACE, make_scheduler("uniform"), Conditions(gpus=1.5, error_sd=sd)).accuracy
        for sd in (None, 0.5)
    ]
    assert accuracies[0] == accuracies[1]


def test_simulate_oracle_gets_truth_despite_error():
    needs = Needs(labels=True, inference_profile=True, micro_profile=True, true_profile=True)
    noisy = generate_trace(11, 3, 4, replace(SMALL, validation_noise=0.1))
    knows = [
        simulate(noisy, HalfAndHalf(needs, "oracle"), Conditions(gpus=1.5, error_sd=sd)).accuracy
        for sd in (None, 0.5)
    ]
    assert knows[0] == knows[1]
    assert knows[0] != simulate(noisy, HalfAndHalf(), Conditions(gpus=1.5)).accuracy


def test_simulate_other_window_length_and_number_are_used():
    short = simulate(TRACE, HalfAndHalf(), Conditions(gpus=1.5, window_us=30_000_000, windows=2))
    assert short.steps[-1].now_us >= 60_000_000
    assert [event.index for event in events_of(short, ev.WindowOpened)] == [0, 1]
    assert [event.t_us for event in events_of(short, ev.WindowClosed)] == [30_000_000, 60_000_000]


@pytest.mark.parametrize("placement", [Packing.QUANTISED, Packing.BEST_FIT])
def test_simulate_placement_reports_rounding_cost(placement):
    played = simulate(TRACE, make_scheduler("exact"), Conditions(gpus=1.5, placement=placement))
    plans = [turn.plan for turn in played.steps if turn.plan is not None]
    for plan in plans:
        held = Counter[int | None]()
        for one in plan.phases[0].assignments:
            held.update({one.retrain_gpu: one.retrain_share_milli})
            held.update({one.inference_gpu: one.inference_share_milli})
        assert held.pop(None, 0) == 0
        assert all(held[gpu] <= room for gpu, room in {0: 1000, 1: 500}.items())
        assert set(held) <= {0, 1}
    told = summary_of(played)
    assert told["placement"] == placement
    assert told["rounding_cost"] == pytest.approx(fmean(plan.rounding_cost for plan in plans), abs=1e-6)
    assert any(plan.rounding_cost != 0.0 for plan in plans)


def test_family_costs_are_means_of_their_gammas():
    costs = {cost.family: cost for cost in family_costs(TRACE)}
    cheap, dear = (costs[shape.family] for shape in SMALL.families)
    assert dear.epoch_gpu_s == pytest.approx(7 * cheap.epoch_gpu_s)
    assert cheap.prepare_gpu_s == pytest.approx(0.0, abs=1e-9)


def test_simulate_summary_equals_golden_bytes():
    """The golden file is the output of this scheduler; rewrite it by hand when the world changes."""
    said = json.dumps(summary_of(PLAYED), indent=1, ensure_ascii=False) + "\n"
    again = summary_of(simulate(TRACE, HalfAndHalf(), Conditions(gpus=1.5)))
    assert json.dumps(again, indent=1, ensure_ascii=False) + "\n" == said
    assert said == GOLDEN.read_text(encoding="utf-8")


def test_accuracy_by_the_golden_detector_is_that_of_lambda_alone(tmp_path):
    golden = InferenceOption(InferenceConfig(5, GOLDEN_RESOLUTION), 0.875, 400)
    stream = TRACE.streams[0]
    windows = tuple(replace(of, inference=(*of.inference, golden)) for of in stream.windows)
    write_trace(tmp_path / "t.parquet", replace(TRACE, streams=(replace(stream, windows=windows),)))
    (read,) = read_trace(tmp_path / "t.parquet").streams
    played = TraceStream(read, TRACE.window_us, LINEAR)
    for window, share_milli in enumerate((400, 200)):
        played.configure(golden.config, share_milli, window * TRACE.window_us)
    played.advance(2 * TRACE.window_us)
    assert played.mean_accuracy(0) == pytest.approx(0.875)
    assert played.mean_accuracy(1) == pytest.approx(0.875 / 2)


# Streams that end before others


SHORT = generate_trace(5, 3, 4)
FIRST = SHORT.streams[0]
WINDOW_US = SHORT.window_us


def with_first(windows, last_part=1.0):
    short = replace(FIRST, windows=FIRST.windows[:windows], last_part=last_part)
    return replace(SHORT, streams=(short, *SHORT.streams[1:]))


def accuracy_of_first(trace):
    """Returns the accuracy in window 1 under the base model, and the events until the last window is over."""
    options = Conditions(gpus=2.0).loop_options(trace)
    executor = VirtualExecutor(TraceWorld(trace, options, Estimates()), options.checkpoint_delay_us)
    executor.wait(0)
    executor.execute_commands([cmd.SetInference(FIRST.stream, SHORT.inference_configs[-1], 1000)])
    told = []
    while executor.now_us < 4 * WINDOW_US:
        happened = executor.wait(4 * WINDOW_US).events
        told += [event for event in happened if not isinstance(event, ev.ShareResized)]
    return executor.world.mean_accuracy(FIRST.stream, 1), told


@pytest.mark.parametrize(("last_part", "ends"), [(0.5, 1.5), (1.0, 2.0)])
def test_trace_end_of_a_camera_is_reported_once(last_part, ends):
    accuracy, told = accuracy_of_first(with_first(2, last_part))
    assert told == [ev.StreamEnded(round(ends * WINDOW_US), FIRST.stream)]
    assert accuracy == pytest.approx(accuracy_of_first(SHORT)[0])


def test_trace_stream_longer_than_run_has_no_end():
    assert accuracy_of_first(SHORT)[1] == []


@pytest.mark.parametrize("scheduler", ["ekya", "uniform", "reuse", "oracle"])
def test_trace_shorter_stream_is_played_beside_others(scheduler):
    played = simulate(with_first(2), make_scheduler(scheduler), Conditions(gpus=1.5))
    assert [len(windows) for windows in played.accuracy.values()] == [2, 4, 4]
    ends = [event.t_us for turn in played.steps for event in turn.events if isinstance(event, ev.StreamEnded)]
    assert ends == [2 * WINDOW_US]
    later = [turn.plan for turn in played.steps if turn.plan is not None and turn.now_us >= ends[0]]
    assert later
    assert {of.stream for plan in later for of in plan.phases[0].assignments} == {
        stream.stream for stream in SHORT.streams[1:]
    }
    entries = summary_of(played)["streams"][FIRST.stream]["windows"]
    assert [window["accuracy"] is None for window in entries] == [False, False, True, True]
