"""Finishes a run: writes scores, summary, figures and report from the files in its folder."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ekya.config.fleet_file import FleetConfig
from ekya.core.objects import BACKGROUND
from ekya.core.records import NO_LABELS, LabelledBoxes
from ekya.core.step_record import StepRecord
from ekya.core.units import StreamId, us_to_seconds
from ekya.models.golden.golden_model import GoldenModel, open_golden
from ekya.pipeline.classes import fleet_classes
from ekya.pipeline.record import merge_frames
from ekya.pipeline.reference import write_reference
from ekya.pipeline.setup import job_places
from ekya.results.metrics.accuracy import StreamScore, score_stream
from ekya.results.metrics.energy import gpu_facts
from ekya.results.metrics.health import counted_frames
from ekya.results.metrics.health_follower import health_of
from ekya.results.metrics.run_history import RunHistory, outcomes, profile_rows, summarize, warnings_of
from ekya.results.metrics.summary import HostFacts, RunFacts, SampledAccuracy, StreamFacts, build_summary
from ekya.results.metrics.timeline import Curve, RunTimeline, StreamCurves
from ekya.results.report.figures import draw_timeline
from ekya.results.report.html import ReportFigure, render_report
from ekya.results.report.panels import DARK, LIGHT
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore, StreamRow
from ekya.results.storage.run_tables import read_predictions, read_reference, write_profiles
from ekya.system.files import write_bytes_atomic, write_text_atomic

_LOG = logging.getLogger(__name__)

Scores = Mapping[StreamId, StreamScore]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """Facts of a run that are not in its folder."""

    world: str
    seed: int
    host: HostFacts = field(default_factory=HostFacts)


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """Result of a finished run.

    Attributes:
        summary: the content of ``summary.json``.
    """

    summary: dict[str, Any]


def finish_run(folder: RunFolder, fleet: FleetConfig, end: RunEnd) -> Finished:
    """Scores a run and writes its summary, figures and report. May be called again."""
    streams = [stream.id for stream in fleet.streams]
    merge_frames(folder, streams)
    scheduler, options, steps = read_journal(folder.journal)
    history = summarize(steps)
    with StateStore(folder.state) as store:
        for window in history.windows:
            store.put_window(window.index, window.start_us, window.end_us)
    _complete_references(folder, fleet, history)
    scores = score_run(folder, fleet)
    shadows = score_shadows(folder, fleet)
    sampled = {
        stream: SampledAccuracy(shadow.base.accuracy, shadow.served.accuracy)
        for stream, shadow in shadows.items()
    }
    gpus = gpu_facts(steps, job_places(fleet, options.capacity_milli))
    summary = summarise(folder, fleet, scheduler, end, steps, history, scores, sampled, gpus)
    write_text_atomic(folder.summary, dump_summary(summary))
    write_profiles(folder.profiles, profile_rows(history))
    _draw(folder, fleet, summary, history, scores, shadows, options.capacity_milli)
    return Finished(summary)


def dump_summary(summary: Mapping[str, Any]) -> str:
    """Returns the text of ``summary.json``."""
    return json.dumps(summary, indent=2, ensure_ascii=False) + "\n"


def summarise(
    folder: RunFolder,
    fleet: FleetConfig,
    scheduler: str,
    end: RunEnd,
    steps: list[StepRecord],
    history: RunHistory,
    scores: Scores,
    sampled: Mapping[StreamId, SampledAccuracy],
    gpus: Mapping[str, Any],
) -> dict[str, Any]:
    """Builds the summary of a run from its steps, its scores and the measured use of its GPUs."""
    with StateStore(folder.state) as store:
        rows = {row.stream: row for row in store.streams()}
    frames = {
        stream.id: counted_frames(read_predictions(folder.predictions(stream.id))) for stream in fleet.streams
    }
    facts = RunFacts(
        world=end.world,
        scheduler=scheduler,
        seed=end.seed,
        gpus=fleet.gpus,
        window_s=fleet.window_s,
        streams=tuple(_stream_facts(stream.id, rows, history) for stream in fleet.streams),
        history=history,
        label_budget_gpu_s=_label_budget_gpu_s(fleet, history),
        host=_host_facts(end, history, gpus),
        health=health_of(steps, frames),
        warnings=warnings_of(steps),
    )
    return build_summary(facts, outcomes(steps, history), scores, sampled)


def score_run(
    folder: RunFolder, fleet: FleetConfig, also_labelled: Mapping[StreamId, LabelledBoxes] | None = None
) -> dict[StreamId, StreamScore]:
    """Returns every stream's score. Objects in ``also_labelled`` (from another run) do not count either."""
    scores = {}
    for stream in fleet.streams:
        others = (also_labelled or {}).get(stream.id, NO_LABELS)
        scores[stream.id] = score_stream(
            read_predictions(folder.predictions(stream.id)),
            read_reference(folder.reference(stream.id)),
            LabelledBoxes.joined([labelled_in(folder, stream.id), others]),
            decoded=_decoded(folder, stream.id),
            class_count=len(fleet_classes(fleet)),
            background=_background(fleet),
        )
    return scores


@dataclass(frozen=True, slots=True, eq=False)
class Shadow:
    """Scores of one stream on the sampled frames only: of the base model, and of the models that served."""

    base: StreamScore
    served: StreamScore


def score_shadows(folder: RunFolder, fleet: FleetConfig) -> dict[StreamId, Shadow]:
    """Returns both scores of every stream."""
    shadows = {}
    for stream in fleet.streams:
        base = read_predictions(folder.without_retraining(stream.id))
        served = read_predictions(folder.predictions(stream.id))
        reference = read_reference(folder.reference(stream.id)).only(base.frame)
        score = partial(
            score_stream,
            reference=reference,
            labelled=labelled_in(folder, stream.id),
            decoded=0,
            class_count=len(fleet_classes(fleet)),
            background=_background(fleet),
        )
        shadows[stream.id] = Shadow(score(base), score(served))
    return shadows


def labelled_in(folder: RunFolder, stream: StreamId) -> LabelledBoxes:
    """Returns frames and boxes of the labels that a run used to train and validate its models."""
    with StateStore(folder.state) as store:
        return store.labelled(stream)


def labelled_in_any(folders: Iterable[RunFolder], stream: StreamId) -> LabelledBoxes:
    """Returns frames and boxes of labels that any of several runs of a fleet used."""
    return LabelledBoxes.joined(labelled_in(folder, stream) for folder in folders)


def _complete_references(folder: RunFolder, fleet: FleetConfig, history: RunHistory) -> None:
    until_us = max((window.end_us for window in history.windows), default=0)
    golden: GoldenModel | None = None
    for stream in fleet.streams:
        if stream.source.live:
            _LOG.info("%s: a live camera's frames are gone, so nothing says how accurate it was", stream.id)
        elif not stream.source.gives_truth and not len(read_reference(folder.reference(stream.id)).frame):
            golden = golden or open_golden(fleet.golden, fleet_classes(fleet))
            write_reference(folder, stream, golden, until_us)


def _draw(
    folder: RunFolder,
    fleet: FleetConfig,
    summary: dict[str, Any],
    history: RunHistory,
    scores: Scores,
    shadows: Mapping[StreamId, Shadow],
    capacity_milli: int,
) -> None:
    timeline = RunTimeline(
        windows=history.windows,
        streams=tuple(
            StreamCurves(stream, _curve(score), _curve(shadows[stream].base))
            for stream, score in scores.items()
        ),
        shares=history.shares,
        retrainings=history.retrainings,
        swaps=history.swaps,
        capacity_milli=capacity_milli,
        preparations=history.preparations,
    )
    if not timeline.windows:
        return
    title = f"{fleet.name}: accuracy and shares under {summary['scheduler']}"
    write_bytes_atomic(folder.figures / "timeline.png", draw_timeline(timeline, title, LIGHT))
    # The page has its own heading above the figure, so these have no title.
    light, dark = draw_timeline(timeline, theme=LIGHT), draw_timeline(timeline, theme=DARK)
    caption = (
        "Accuracy of every stream over time, and which job held which share. Without retraining: the base "
        "model on the frames that were sampled for labelling."
    )
    page = render_report(
        folder.name,
        summary,
        [ReportFigure("Accuracy and shares over time", caption, light, dark)],
    )
    write_text_atomic(folder.report, page)


def _label_budget_gpu_s(fleet: FleetConfig, history: RunHistory) -> float | None:
    """Returns the golden model's budget over all labellings, one per window and stream; None if unlimited."""
    one_gpu_s = fleet.golden.gpu_s_per_window
    return None if one_gpu_s is None else one_gpu_s * history.labellings


def _host_facts(end: RunEnd, history: RunHistory, gpus: Mapping[str, Any]) -> HostFacts:
    """Adds hot swap delays and GPU use in a live world, where run time is the host's clock."""
    if end.world != "live":
        return end.host
    return replace(
        end.host,
        swap_delay_ms=tuple(delay_us / 1000 for delay_us in history.swap_delays_us),
        others={**end.host.others, **({"gpus": dict(gpus)} if gpus else {})},
    )


def _curve(score: StreamScore) -> Curve:
    return Curve(score.series, score.accuracy)


def _stream_facts(stream: StreamId, rows: Mapping[StreamId, StreamRow], history: RunHistory) -> StreamFacts:
    row = rows.get(stream, StreamRow(stream))
    lost_us = sum(span.end_us - span.start_us for span in history.lost if span.stream == stream)
    set_aside = row.set_aside or dict(history.set_aside).get(stream)
    return StreamFacts(stream, row.damaged, set_aside, us_to_seconds(lost_us))


def _decoded(folder: RunFolder, stream: StreamId) -> int:
    with StateStore(folder.state) as store:
        return next((row.decoded for row in store.streams() if row.stream == stream), 0)


def _background(fleet: FleetConfig) -> int | None:
    classes = fleet_classes(fleet)
    return classes.index(BACKGROUND) if BACKGROUND in classes else None
