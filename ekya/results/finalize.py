"""Finishes a run: writes scores, summary, figures and report from the files in its folder."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ekya.config.fleet_file import FleetConfig
from ekya.core.objects import BACKGROUND
from ekya.core.records import NO_LABELS, LabelledBoxes
from ekya.core.units import StreamId
from ekya.models.edge.architecture_table import Task
from ekya.models.golden.golden_model import GoldenModel, open_golden
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.reference import write_reference
from ekya.pipeline.run_writer import merge_frames
from ekya.pipeline.setup import job_places
from ekya.results.metrics.accuracy import StreamScore, score_stream
from ekya.results.metrics.detection_accuracy import score_detections
from ekya.results.metrics.energy import gpu_facts
from ekya.results.metrics.health import counted_frames
from ekya.results.metrics.health_follower import health_of
from ekya.results.metrics.run_history import RunHistory, profile_rows, summarize_steps, warnings_of
from ekya.results.metrics.summary import RunFacts, SampledAccuracy, SummaryHost, build_summary
from ekya.results.metrics.window_outcomes import list_outcomes
from ekya.results.pictures import StreamRecords, stream_pictures
from ekya.results.report.figures import draw_timeline
from ekya.results.report.html import ReportFigure, ReportPictures, render_report
from ekya.results.report.panels import RunTimeline, StreamCurves
from ekya.results.report.promises import FEWEST, draw_promises
from ekya.results.report.themes import DARK, LIGHT
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.results.storage.run_tables import read_predictions, read_reference, write_profiles
from ekya.system.files import write_bytes_atomic, write_text_atomic

_LOG = logging.getLogger(__name__)

Scores = Mapping[StreamId, StreamScore]


def finish_run(
    folder: RunFolder, fleet: FleetConfig, world: str, seed: int, host: SummaryHost | None = None
) -> dict[str, Any]:
    """Scores a run and writes its summary, figures and report; returns the summary. May be called again.

    Args:
        folder, fleet: of the run.
        world: ``live`` or ``emulated``.
        seed: of the run.
        host: measurements by the host's clock.
    """
    merge_frames(folder, [stream.id for stream in fleet.streams])
    scheduler, options, steps = read_journal(folder.journal)
    history = summarize_steps(steps)
    with StateStore(folder.state) as store:
        for window in history.windows:
            store.put_window(window.index, window.start_us, window.end_us)
        rows = {row.stream: row for row in store.read_streams()}
    _complete_references(folder, fleet, history)
    scores = score_run(folder, fleet)
    shadows = score_shadows(folder, fleet)
    host = host or SummaryHost()
    if world == "live":
        # Only there run time is the host's clock.
        gpus = gpu_facts(steps, job_places(fleet, options.capacity_milli))
        host = replace(
            host,
            swap_delay_ms=tuple(delay_us / 1000 for delay_us in history.swap_delays_us),
            others={**host.others, **({"gpus": gpus} if gpus else {})},
        )
    budget_gpu_s = fleet.golden.gpu_s_per_window
    facts = RunFacts(
        world=world,
        scheduler=scheduler,
        seed=seed,
        gpus=fleet.gpus,
        window_s=fleet.window_s,
        history=history,
        label_budget_gpu_s=None if budget_gpu_s is None else budget_gpu_s * history.labellings,
        damaged={stream: row.damaged for stream, row in rows.items()},
        set_aside={
            **dict(history.set_aside),
            **{stream: row.set_aside for stream, row in rows.items() if row.set_aside},
        },
        host=host,
        health=health_of(
            steps,
            {stream: counted_frames(read_predictions(folder.predictions(stream))) for stream in scores},
        ),
        warnings=warnings_of(steps),
        detects=fleet.edge.task is Task.DETECT,
    )
    sampled = {
        stream: SampledAccuracy(shadow.base.accuracy, shadow.served.accuracy)
        for stream, shadow in shadows.items()
    }
    summary = build_summary(facts, list_outcomes(steps, history), scores, sampled)
    write_text_atomic(folder.summary, dump_summary(summary))
    write_profiles(folder.profiles, profile_rows(history))
    curves = tuple(StreamCurves(stream, score, shadows[stream].base) for stream, score in scores.items())
    if history.windows:
        timeline = RunTimeline(history, curves, options.capacity_milli)
        _draw(folder, fleet, summary, timeline, _pictures(folder, fleet))
    return summary


def dump_summary(summary: Mapping[str, Any]) -> str:
    """Returns the text of ``summary.json``."""
    return json.dumps(summary, indent=2, ensure_ascii=False) + "\n"


def choose_scoring(fleet: FleetConfig) -> Callable[..., StreamScore]:
    """Returns what scores a stream of the fleet, by the task of its edge models.

    Its arguments are predictions, reference and labelled boxes of a stream, and ``decoded``.
    """
    classes = fleet_classes(fleet)
    match fleet.edge.task:
        case Task.CLASSIFY:
            background = classes.index(BACKGROUND) if BACKGROUND in classes else None
            return partial(score_stream, class_count=len(classes), background=background)
        case Task.DETECT:
            return partial(score_detections, class_count=len(classes))


def score_run(
    folder: RunFolder, fleet: FleetConfig, also_labelled: Mapping[StreamId, LabelledBoxes] | None = None
) -> dict[StreamId, StreamScore]:
    """Returns every stream's score. Objects in ``also_labelled`` (from another run) do not count either."""
    score, scores = choose_scoring(fleet), {}
    for stream in fleet.streams:
        others = (also_labelled or {}).get(stream.id, NO_LABELS)
        scores[stream.id] = score(
            read_predictions(folder.predictions(stream.id)),
            read_reference(folder.reference(stream.id)),
            LabelledBoxes.join_boxes([labelled_in(folder, stream.id), others]),
            decoded=_decoded(folder, stream.id),
        )
    return scores


@dataclass(frozen=True, slots=True, eq=False)
class Shadow:
    """Scores of one stream on the sampled frames only: of the base model, and of the models that served."""

    base: StreamScore
    served: StreamScore


def score_shadows(folder: RunFolder, fleet: FleetConfig) -> dict[StreamId, Shadow]:
    """Returns both scores of every stream."""
    score, shadows = choose_scoring(fleet), {}
    for stream in fleet.streams:
        base = read_predictions(folder.without_retraining(stream.id))
        served = read_predictions(folder.predictions(stream.id))
        reference = read_reference(folder.reference(stream.id)).select_frames(base.frame)
        labelled = labelled_in(folder, stream.id)
        shadows[stream.id] = Shadow(
            score(base, reference, labelled, decoded=0), score(served, reference, labelled, decoded=0)
        )
    return shadows


def labelled_in(folder: RunFolder, stream: StreamId) -> LabelledBoxes:
    """Returns frames and boxes of the labels that a run used to train and validate its models."""
    with StateStore(folder.state) as store:
        return store.read_labels(stream)


def labelled_in_any(folders: Iterable[RunFolder], stream: StreamId) -> LabelledBoxes:
    """Returns frames and boxes of labels that any of several runs of a fleet used."""
    return LabelledBoxes.join_boxes(labelled_in(folder, stream) for folder in folders)


def _complete_references(folder: RunFolder, fleet: FleetConfig, history: RunHistory) -> None:
    until_us = max((window.end_us for window in history.windows), default=0)
    golden: GoldenModel | None = None
    for stream in fleet.streams:
        if stream.source.live:
            _LOG.info("%s: a live camera's frames are gone, so nothing says how accurate it was", stream.id)
        elif not stream.source.gives_truth and not len(read_reference(folder.reference(stream.id)).frame):
            golden = golden or open_golden(fleet.golden, fleet_classes(fleet), fleet.edge.task)
            write_reference(folder, stream, golden, until_us)


def _pictures(folder: RunFolder, fleet: FleetConfig) -> dict[StreamId, ReportPictures]:
    """Returns pictures of each stream whose edge model detects."""
    if fleet.edge.task is not Task.DETECT:
        return {}
    return {
        stream.id: stream_pictures(
            stream,
            fleet_classes(fleet),
            StreamRecords(
                read_predictions(folder.without_retraining(stream.id)),
                read_predictions(folder.predictions(stream.id)),
                read_reference(folder.reference(stream.id)),
                labelled_in(folder, stream.id),
            ),
        )
        for stream in fleet.streams
    }


def _draw(
    folder: RunFolder,
    fleet: FleetConfig,
    summary: dict[str, Any],
    timeline: RunTimeline,
    pictures: Mapping[StreamId, ReportPictures],
) -> None:
    title = f"{fleet.name}: accuracy and shares under {summary['scheduler']}"
    write_bytes_atomic(folder.figures / "timeline.png", draw_timeline(timeline, title, LIGHT))
    # The page has its own heading above the figure, so these have no title.
    light, dark = draw_timeline(timeline, theme=LIGHT), draw_timeline(timeline, theme=DARK)
    measure = "Accuracy, as F1," if fleet.edge.task is Task.DETECT else "Accuracy"
    caption = (
        f"{measure} of every stream over time, and which job held which share. Without retraining: the base "
        "model on the frames that were sampled for labelling."
    )
    figures = [ReportFigure("Accuracy and shares over time", caption, light, dark)]
    if len(summary["promises"]) >= FEWEST:
        said = (
            "Each point is a retraining whose weights served: the gain that was promised when it began, and "
            "that over the weights before on the next labels, which neither had learnt from; larger with "
            "more objects. On the line what came is as promised."
        )
        drawn = (draw_promises(summary["promises"], theme) for theme in (LIGHT, DARK))
        figures.append(ReportFigure("What retrainings promised, and what came", said, *drawn))
    # Last of all: a run with summary and report counts as complete, and is not finished again.
    write_text_atomic(folder.report, render_report(folder.name, summary, figures, pictures))


def _decoded(folder: RunFolder, stream: StreamId) -> int:
    with StateStore(folder.state) as store:
        return next((row.decoded for row in store.read_streams() if row.stream == stream), 0)
