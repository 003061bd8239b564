"""Effects of events on the state of the loop."""

from dataclasses import replace
from typing import Any

from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.shares import ShareHolder, Work
from ekya.core.speed import Pace
from ekya.core.state import FleetState, RetrainJob, StreamState, WindowLabels, WindowProfiles
from ekya.core.stream_faults import OVER
from ekya.core.units import US_PER_S, StreamId, us_to_seconds

ENOUGH_SCENE_US = 6 * US_PER_S
"""Time in which a new scene shows enough objects for its labels: a street shows a few new ones a second."""

FIRST_LABELS_US = 4 * US_PER_S
"""Time after which a camera that has just begun is labelled: its window ends much later."""

FIRST_AGAIN_US = 3 * FIRST_LABELS_US
"""Time after which it is labelled once more: the first seconds have shown few objects."""

WELL = 0.9
"""Accuracy on its first labels with which a camera is not labelled again before its first window ends."""

MOST_FORGOTTEN = 1000
"""Number of removed streams that are remembered: their late events change nothing, others' are an error.

Such events come within minutes. It is no number of windows, since many short ones can be over while a
process hangs.
"""


def apply_event(state: FleetState, event: ev.Event) -> FleetState:
    """Returns the state after an event. Events of a past job or window change nothing."""
    match event:
        case ev.WindowOpened():
            labels, profiles = WindowLabels(), WindowProfiles()
            first_labels_us = event.t_us + FIRST_LABELS_US if event.index == 0 else None
            newest_us = _newest_us(event.t_us, event.end_us)
            return replace(
                state,
                streams=tuple(
                    replace(
                        stream,
                        accuracy=_accuracy_of_serving(stream),
                        labels=labels,
                        profiles=profiles,
                        # A model from elsewhere may still be on its way; other jobs were stopped.
                        job=stream.job if stream.job is not None and stream.job.elsewhere else None,
                        finished=None,
                        paces=(),
                        drifted_us=_still_new_us(stream, newest_us),
                        relabelling=False,
                        reactions=0,
                        more_labels_us=first_labels_us,
                    )
                    for stream in state.streams
                    if not stream.removed
                ),
                forgotten=_with_forgotten(state),
                rounds=0,
                window=event.index,
                window_open_us=event.t_us,
                window_end_us=event.end_us,
            )
        case ev.WindowClosed() | ev.GpuMeasured() | ev.ShareOverdue() | ev.FramesCounted() | ev.Warned():
            return state
        case ev.ShareResized():
            return _at_share(state, event.holder, event.share_milli)
        case ev.PreparationEnded():
            return state.without_preparation() if state.ends_preparation(event) else state
        case rq.RestartRequested():
            return state
        case ev.ProfilerDown() | ev.ProfilerBack():
            return replace(state, profiler_down=isinstance(event, ev.ProfilerDown))
        case ev.CapacityLent():
            return replace(state, lent_milli=event.share_milli)
        case rq.MinAccuracyChanged():
            return replace(state, min_accuracy=event.min_accuracy)
        case rq.SchedulerChanged():
            return replace(state, scheduler=event.scheduler)
        case rq.CapacityChanged():
            return replace(state, capacity=event)
        case rq.LabelBudgetChanged():
            return replace(state, label_budget=event.budget)
        case ev.WorkerBack(left_gpu=int() as left) if left not in state.lost_gpus:
            return apply_event(replace(state, lost_gpus=(*state.lost_gpus, left)), event)
        case ev.StreamAdded():
            # A new camera may have the name of a removed one; its own events count again.
            others = tuple(one for one in state.forgotten if one != event.stream)
            state = replace(state, forgotten=others)
            return state.with_stream(
                StreamState(
                    event.stream,
                    event.inference_options,
                    added_in=_window_at(state, event.t_us),
                    more_labels_us=event.t_us + FIRST_LABELS_US,
                    gpu=event.gpu,
                )
            )
        case _:
            return state.with_stream(_apply_to_stream(state, state.stream(event.stream), event))


def _with_forgotten(state: FleetState) -> tuple[StreamId, ...]:
    """Returns the streams that are forgotten once a window opens."""
    removed = (one.stream for one in state.streams if one.removed)
    return (*state.forgotten, *removed)[-MOST_FORGOTTEN:]


def _newest_us(open_us: int, end_us: int) -> int:
    """Returns the middle of the window before: the labels of a window show scenes up to there.

    They are drawn from all of that window, so most of them show an older scene than one that began later.
    """
    return open_us - (end_us - open_us) // 2


def _accuracy_of_serving(stream: StreamState) -> float | None:
    """Returns the accuracy of the weights that serve at a window's end: on all labels, where it is of them.

    A window may have validated with a single frame, and a stream that is not labelled in the next one has
    no other measure.
    """
    measured = stream.labels.accuracy_on_all
    if measured is None or stream.serves_retrained or stream.labels.new_classes:
        return stream.accuracy
    return measured


def _still_new_us(stream: StreamState, newest_us: int) -> int | None:
    """Returns the stream time of a drift that a window's own labels will show too little of; None without."""
    since_us = stream.drifted_us
    if since_us is None and stream.more_labels_us is not None:
        since_us = stream.labels.since_us
    return since_us if since_us is not None and since_us > newest_us else None


def _at_share(state: FleetState, holder: ShareHolder, share_milli: int) -> FleetState:
    """Returns the state after a job has changed to another share."""
    if holder.work is not Work.RETRAINING or holder.stream is None or holder.stream in state.forgotten:
        return state
    stream = state.stream(holder.stream)
    if stream.job is None or stream.job.job != holder.number:
        return state
    job = replace(stream.job, held_milli=share_milli, epoch_since_us=None)
    return state.with_stream(replace(stream, job=job))


def _window_at(state: FleetState, t_us: int) -> int:
    """Returns the window of a moment; the end of the open one belongs to the next."""
    return max(state.window, 0) + (state.window >= 0 and t_us >= state.window_end_us)


def _apply_to_stream(state: FleetState, stream: StreamState, event: ev.Event) -> StreamState:
    known = stream.profiles
    match event:
        case ev.LabelsReady() if event.window == state.window:
            labels = WindowLabels(
                event.training_crops,
                event.validation_crops,
                event.new_classes,
                event.class_histogram,
                event.since_us,
                pooled=0 if event.pooled is None else event.pooled.labels,
                until_us=_labelled_until_us(state, event),
                accuracy_on_all=event.accuracy_on_all,
                objects=event.objects,
            )
            # Without validation crops there is no new accuracy of the model.
            accuracy = event.serving_accuracy if event.validation_crops else stream.accuracy
            labelled = replace(
                stream,
                labels=labels,
                accuracy=accuracy,
                # Labels of the window before do not show what was asked for since.
                requested=stream.requested and event.since_us is None and stream.drifted_us is not None,
            )
            return _of_new_scene(labelled, event, stream.requested) if event.of_new_scene else labelled
        case ev.DriftDetected():
            # The labels of a first scene were no answer to a drift.
            reactions = 0 if stream.scene_us is None else stream.reactions
            scene_us = max(stream.scene_us or 0, event.since_us)
            noticed = replace(stream, scene_us=scene_us, reactions=reactions)
            newest_us = _newest_us(state.window_open_us, state.window_end_us)
            if event.window != state.window and event.since_us <= newest_us:
                return noticed  # the labels of this window show the new scene
            return replace(noticed, drifted_us=event.since_us, more_labels_us=None)
        case ev.MoreLabelsDue() if event.window == state.window:
            began_us = (stream.more_labels_us or event.t_us) - FIRST_LABELS_US
            since_us = began_us if stream.labels.since_us is None else stream.labels.since_us
            return replace(stream, drifted_us=since_us, more_labels_us=None)
        case ev.InferenceProfiled() if event.window == state.window and event.options:
            return replace(stream, inference_options=event.options, inference_measured=True)
        case ev.ProfileReady() if event.window == state.window:
            return replace(stream, profiles=replace(known, curves=(*known.curves, event.curve)))
        case ev.RetrainProfiled() if event.window == state.window:
            return replace(stream, profiles=replace(known, options=(*known.options, *event.options)))
        case ev.MemoryShort() if event.window == state.window:
            return replace(stream, profiles=replace(known, did_not_fit=(*known.did_not_fit, event.what)))
        case ev.ModelCached():
            return replace(stream, cached=(*stream.cached, event.model))
        case ev.ModelSwapped():
            return replace(stream, version=event.version, accuracy=event.validation_accuracy)
        case ev.RolledBack():
            return replace(stream, version=event.version)
        case ev.NeedMeasured():
            return replace(stream, need=event)
        case ev.WorkerDied() if stream.status not in OVER:
            return _after_death(stream, event)
        case ev.WorkerBack():
            gpu = stream.gpu if event.gpu is None else event.gpu
            down = None if event.role is ev.Role.INFERENCE else stream.faults.down
            return replace(stream, gpu=gpu, faults=replace(stream.faults, down=down))
        case ev.StreamReadmitted() if stream.faults.set_aside is not None:
            return replace(stream, faults=stream.faults.after_readmission())
        case ev.StreamLost():
            return _not_serving(stream, lost=event.reason)
        case ev.StreamBack():
            return replace(stream, faults=replace(stream.faults, lost=None))
        case ev.StreamEnded():
            return _not_serving(stream, ended=True)
        case rq.StreamRemoved():
            return replace(_not_serving(stream, ended=True), removed=True)
        case rq.StreamPaused(paused=True):
            return _not_serving(stream, paused=True)
        case rq.StreamPaused():
            resumed = replace(stream.faults, paused=False)
            return replace(
                stream, faults=resumed if resumed.set_aside is None else resumed.after_readmission()
            )
        case rq.ModelFrozen():
            return replace(stream, frozen=event.frozen)
        case rq.TermsChanged():
            return replace(stream, terms=event)
        case rq.AreasChanged():
            return replace(stream, areas=event.areas)
        case rq.LabelsRequested():
            # The request counts like a drift that is not answered yet, however often it was answered before.
            return replace(
                stream, drifted_us=event.since_us, more_labels_us=None, reactions=0, requested=True
            )
        case ev.RetrainProgress() | ev.RetrainFinished() | ev.RetrainFailed():
            return _apply_to_job(stream, event)
        case _:
            return stream


def _labelled_until_us(state: FleetState, event: ev.LabelsReady) -> int:
    """Returns the stream time up to which the frames of new labels were drawn."""
    if event.since_us is None:
        return state.window_open_us
    return event.t_us if state.preparation is None else state.preparation.began_us


def _of_new_scene(stream: StreamState, event: ev.LabelsReady, requested: bool) -> StreamState:
    """Returns the stream without what is known of the scene before its new labels.

    It may be retrained again, whatever was retrained in the window before. Labels that an operator has
    ``requested`` are made again as well where it has shown little.
    """
    since_us = event.since_us or 0
    newer = stream.drifted_us is not None and stream.drifted_us > since_us
    # Cameras that begin together need not show the same, so this is no scene whose labels are pooled.
    is_first = stream.scene_us is None and not requested
    enough_us = FIRST_AGAIN_US if is_first else ENOUGH_SCENE_US
    again_us = None if newer or (is_first and _shows_well(event)) else shown_enough_us(event, enough_us)
    return replace(
        stream,
        profiles=WindowProfiles(did_not_fit=stream.profiles.did_not_fit),
        finished=None,
        scene_us=stream.scene_us if is_first else max(stream.scene_us or 0, since_us),
        drifted_us=stream.drifted_us if newer else None,
        relabelling=False,
        more_labels_us=again_us,
        requested=requested and (newer or again_us is not None),
    )


def _shows_well(event: ev.LabelsReady) -> bool:
    """Returns whether the serving model does so well on labels that more of them would change nothing."""
    known = event.serving_accuracy if event.accuracy_on_all is None else event.accuracy_on_all
    return known >= WELL


def shown_enough_us(event: ev.LabelsReady, shown_us: int = ENOUGH_SCENE_US) -> int | None:
    """Returns when a new scene has been shown for ``shown_us``; None if it had when these were labelled."""
    enough_us = (event.since_us or 0) + shown_us
    return enough_us if event.t_us < enough_us else None


def _apply_to_job(
    stream: StreamState, event: ev.RetrainProgress | ev.RetrainFinished | ev.RetrainFailed
) -> StreamState:
    job = stream.job
    if job is None or job.job != event.job:
        return stream
    match event:
        case ev.RetrainProgress():
            # A slow network may skip the weights of some epochs of a remote retraining.
            missing = (0.0,) * (event.epoch - 1 - len(job.accuracies))
            accuracies = (*job.accuracies, *missing, event.validation_accuracy)
            first = job.first_epoch_gpu_s if job.accuracies else event.gpu_s
            going_on = replace(
                job,
                accuracies=accuracies,
                gpu_s=event.gpu_s,
                first_epoch_gpu_s=first,
                epoch_since_us=event.t_us,
            )
            return replace(stream, job=going_on, paces=(*stream.paces, *_pace(job, event.t_us)))
        case ev.RetrainFinished():
            # The best weights are about to serve unless they are worse; the next plan must know this.
            accuracy = stream.accuracy
            if not stream.relabelling:
                accuracy = max(accuracy or 0.0, job.best_accuracy)
            return replace(stream, job=None, finished=replace(job, gpu_s=event.gpu_s), accuracy=accuracy)
        case ev.RetrainFailed():
            try_another = not job.accuracies and not stream.profiles.has_room_for(job.config)
            return replace(stream, job=None, finished=None if try_another else job)


def _pace(job: RetrainJob, now_us: int) -> tuple[Pace, ...]:
    """Returns the pace of an epoch that ends now; empty if its time is distorted."""
    if job.epoch_since_us is None or job.held_milli == 0:
        return ()
    return (Pace(job.job, job.held_milli, us_to_seconds(now_us - job.epoch_since_us)),)


def _after_death(stream: StreamState, event: ev.WorkerDied) -> StreamState:
    stream = replace(stream, faults=stream.faults.after_death(event))
    if stream.faults.set_aside is None and event.role is ev.Role.RETRAINING:
        return replace(stream, job=None, finished=stream.job or stream.finished)
    return _not_serving(stream)


def _not_serving(stream: StreamState, **fault: Any) -> StreamState:
    """Returns the stream after a fault, without inference, whose share the others get until it is back."""
    faults = replace(stream.faults, **fault)
    return replace(stream, faults=faults, inference=None, inference_share_milli=0)
