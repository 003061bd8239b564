"""Finishes a run: writes scores, summary, figures and report from the files in its folder."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_sections import StreamConfig
from ekya.config.scoring import Scoring
from ekya.core.configs import GOLDEN_RESOLUTION
from ekya.core.objects import BACKGROUND
from ekya.core.records import NO_LABELS, LabelledBoxes
from ekya.core.units import StreamId
from ekya.models.catalogue import licence_of
from ekya.models.edge.architecture_table import Task
from ekya.models.golden.spec import ONNX
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.reference import count_workers
from ekya.pipeline.run_writer import merge_frames
from ekya.pipeline.trained_card import golden_accuracy
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.scheduler import Scheduler
from ekya.results.metrics.accuracy import StreamScore, score_stream
from ekya.results.metrics.detection_accuracy import score_detections
from ekya.results.metrics.gpus import gpu_facts
from ekya.results.metrics.health import counted_frames
from ekya.results.metrics.health_follower import health_of
from ekya.results.metrics.run_history import profile_rows, summarize_steps, warnings_of
from ekya.results.metrics.summary import RunFacts, SampledAccuracy, SummaryHost, build_summary
from ekya.results.metrics.window_outcomes import list_outcomes
from ekya.results.pictures import StreamRecords, stream_pictures
from ekya.results.report.figures import draw_timeline
from ekya.results.report.html import ReportFigure, ReportPictures, render_report
from ekya.results.report.panels import RunTimeline, StreamCurves
from ekya.results.report.promises import FEWEST, draw_promises
from ekya.results.report.themes import DARK, LIGHT
from ekya.results.scoring import complete_references, labelled_in
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.results.storage.run_tables import read_predictions, read_reference, write_profiles
from ekya.system.files import write_bytes_atomic, write_text_atomic

_LOG = logging.getLogger(__name__)

Scores = Mapping[StreamId, StreamScore]


def finish_run(
    folder: RunFolder,
    fleet: FleetConfig,
    world: str,
    seed: int,
    host: SummaryHost | None = None,
    score: Scoring | int = Scoring.ALL,
    scheduler: Scheduler | None = None,
) -> dict[str, Any]:
    """Scores a run and writes its summary, figures and report; returns the summary. May be called again.

    Args:
        folder, fleet: of the run.
        world: ``live`` or ``emulated``.
        seed: of the run.
        host: measurements by the host's clock.
        score: frames of unlabelled video on which detectors are scored, or their number in each window of a
            stream. Those that were scored before stay.
        scheduler: of the run; None for the one that its journal names.
    """
    merge_frames(folder, [stream.id for stream in fleet.streams])
    name, options, steps = read_journal(folder.journal)
    scheduler = scheduler or make_scheduler(name, offered=fleet.retrain_configs())
    history = summarize_steps(steps)
    with StateStore(folder.state) as store:
        for window in history.windows:
            store.put_window(window.index, window.start_us, window.end_us)
        rows = {row.stream: row for row in store.read_streams()}
    complete_references(folder, fleet, history, seed, score)
    scores = score_run(folder, fleet)
    shadows = score_shadows(folder, fleet)
    host = host or SummaryHost()
    if world == "live":
        # Only there run time is the host's clock.
        gpus = gpu_facts(steps)
        host = replace(
            host,
            swap_delay_ms=tuple(delay_us / 1000 for delay_us in history.swap_delays_us),
            others={**host.others, **({"gpus": gpus} if gpus else {})},
        )
    budget_gpu_s = fleet.golden.gpu_s_per_window
    facts = RunFacts(
        world=world,
        scheduler=name,
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
        adapts=scheduler.needs.labels,
        reference=_reference_name(fleet),
        golden_accuracy=golden_accuracy(fleet.golden),
        licences=_licences(fleet),
        analysed_urls={one.id: one.analysed_url for one in fleet.streams if one.analysed_url is not None},
    )
    sampled = {
        stream: SampledAccuracy(
            shadow.base.accuracy,
            shadow.served.accuracy,
            shadow.base_alone.accuracy,
            shadow.student.accuracy,
            shadow.golden_part,
        )
        for stream, shadow in shadows.items()
    }
    summary = build_summary(facts, list_outcomes(steps, history), scores, sampled)
    write_text_atomic(folder.summary, dump_summary(summary))
    write_profiles(folder.profiles, profile_rows(history))
    curves = tuple(
        StreamCurves(
            stream,
            score,
            shadow.base_alone,
            shadow.student if shadow.golden_part else None,
            mean=summary["streams"][stream]["mean_accuracy"],
            mean_without=summary["streams"][stream]["without_retraining"],
        )
        for stream, score in scores.items()
        for shadow in (shadows[stream],)
    )
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
    """Scores of one stream on the sampled frames only.

    Attributes:
        base: of the base model; where the golden detector answered in service, of its answers.
        served: of what served.
        base_alone: of the base model on all of them.
        student: of the adapted models, each on the frames of its time, if they were run there.
        golden_part: part of all frames that the golden detector answered itself.
    """

    base: StreamScore
    served: StreamScore
    base_alone: StreamScore
    student: StreamScore
    golden_part: float


def score_shadows(folder: RunFolder, fleet: FleetConfig) -> dict[StreamId, Shadow]:
    """Returns both scores of every stream."""
    score, shadows = choose_scoring(fleet), {}
    for stream in fleet.streams:
        alone = read_predictions(folder.without_retraining(stream.id))
        served = read_predictions(folder.predictions(stream.id))
        # Retraining the edge model changes nothing in what the golden detector answers.
        by_golden = served.resolution == GOLDEN_RESOLUTION
        base = alone.replace_rows(served.select_rows(np.flatnonzero(by_golden)))
        reference = read_reference(folder.reference(stream.id)).select_frames(alone.frame)
        labelled = labelled_in(folder, stream.id)
        student = read_predictions(folder.student_alone(stream.id))
        known = student.frame if len(student.frame) else alone.frame
        compared = alone.select_rows(np.flatnonzero(np.isin(alone.frame, known)))
        # Weights of long ago may be gone: student and base are scored on the same frames all the same.
        on_both = reference.select_frames(compared.frame)
        shadows[stream.id] = Shadow(
            base=score(base, reference, labelled, decoded=0),
            served=score(served, reference, labelled, decoded=0),
            base_alone=score(compared, on_both, labelled, decoded=0),
            student=score(student, on_both, labelled, decoded=0),
            golden_part=float(by_golden.mean()) if len(by_golden) else 0.0,
        )
    return shadows


def _reference_name(fleet: FleetConfig) -> str | None:
    if any(stream.source.gives_truth for stream in fleet.streams):
        return None
    weights = fleet.golden.weights
    return fleet.golden.model if weights is None or fleet.golden.model != ONNX else weights.stem


def _licences(fleet: FleetConfig) -> dict[str, str]:
    """Returns the licences of models of the catalogue, by the names of their files."""
    files = [file for file in (fleet.golden.weights, fleet.edge.weights) if file is not None]
    licences = {file.stem: licence_of(file) for file in files}
    return {name: licence for name, licence in licences.items() if licence is not None}


def labelled_in_any(folders: Iterable[RunFolder], stream: StreamId) -> LabelledBoxes:
    """Returns frames and boxes of labels that any of several runs of a fleet used."""
    return LabelledBoxes.join_boxes(labelled_in(folder, stream) for folder in folders)


def _pictures(folder: RunFolder, fleet: FleetConfig) -> dict[StreamId, ReportPictures]:
    """Returns pictures of each stream whose edge model detects."""
    if fleet.edge.task is not Task.DETECT:
        return {}

    def draw_stream(stream: StreamConfig) -> ReportPictures:
        records = StreamRecords(
            read_predictions(folder.without_retraining(stream.id)),
            read_predictions(folder.predictions(stream.id)),
            read_reference(folder.reference(stream.id)),
            labelled_in(folder, stream.id),
        )
        return stream_pictures(stream, fleet_classes(fleet), records)

    # Most of the time is that of the processes that read the recordings again.
    with ThreadPoolExecutor(count_workers(len(fleet.streams)), "pictures") as pool:
        drawn = pool.map(draw_stream, fleet.streams)
        return dict(zip((stream.id for stream in fleet.streams), drawn, strict=True))


def _draw(
    folder: RunFolder,
    fleet: FleetConfig,
    summary: dict[str, Any],
    timeline: RunTimeline,
    pictures: Mapping[StreamId, ReportPictures],
) -> None:
    title = f"{fleet.name}: accuracy and shares under {summary['scheduler']}"
    light, dark = (draw_timeline(timeline, title, theme) for theme in (LIGHT, DARK))
    write_bytes_atomic(folder.figures / "timeline.png", light)
    measure = "Accuracy, as F1," if fleet.edge.task is Task.DETECT else "Accuracy"
    caption = (
        f"{measure} of every stream over time, and which job held which share. Without retraining: the base "
        "model on the frames that were sampled for labelling or scoring."
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
