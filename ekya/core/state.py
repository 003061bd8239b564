"""State of the loop, and its changes by events."""

from dataclasses import dataclass, replace
from typing import Any

from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.faults import NO_FAULTS, OVER, Faults, Status
from ekya.core.gpus import DidNotFit
from ekya.core.profile import FamilyCurve
from ekya.core.shares import ShareHolder, Work
from ekya.core.speed import Pace
from ekya.core.units import (
    BASE_VERSION,
    FIRST_JOB,
    ONLY_BASE,
    US_PER_S,
    JobId,
    ModelVersion,
    StreamId,
    us_to_seconds,
)
from ekya.core.view import InferenceOption, RetrainOption
from ekya.core.weights import CachedModel, Elsewhere

ENOUGH_SCENE_US = 6 * US_PER_S
"""Time in which a new scene shows enough objects for its labels: a street shows a few new ones a second."""


@dataclass(frozen=True, slots=True)
class RetrainJob:
    """A retraining in progress.

    Attributes:
        job, config, window: id of the job, its γ, and the window whose labels it trains on.
        share_milli: share of the last command.
        promised_accuracy, expected_gpu_s: its profile's estimates for the whole job.
        expected_accuracy: current estimate of its final accuracy.
        accuracies: validation accuracy after each epoch so far; 0 for an epoch whose weights never arrived.
        gpu_s: GPU-seconds used so far.
        first_epoch_gpu_s: GPU-seconds used by the end of the first epoch, preparation included.
        served_epoch: the epoch of the checkpoint that serves; 0 for none.
        elsewhere: arrival of its weights, where they are not trained here.
        early_part: expected part of the gain before its end; see ``RetrainOption``.
        held_milli: the share at which it works, as its handle reported; 0 while unknown.
        epoch_since_us: begin of the epoch in progress; None where its time is distorted, by a change of
            share, a checkpoint, or the job's preparation in the first epoch.
    """

    job: JobId
    config: RetrainConfig
    window: int
    share_milli: int
    promised_accuracy: float
    expected_accuracy: float
    expected_gpu_s: float
    accuracies: tuple[float, ...] = ()
    gpu_s: float = 0.0
    first_epoch_gpu_s: float = 0.0
    served_epoch: int = 0
    elsewhere: Elsewhere | None = None
    early_part: float = 0.0
    held_milli: int = 0
    epoch_since_us: int | None = None

    @property
    def best_epoch(self) -> int:
        """The last epoch with the best validation accuracy; 0 before the first epoch.

        Validation parts are small and ties frequent; of equal weights the longest trained are preferred.
        """
        best = [epoch for epoch, accuracy in enumerate(self.accuracies, 1) if accuracy == self.best_accuracy]
        return max(best, default=0)

    @property
    def best_accuracy(self) -> float:
        """Validation accuracy after the best epoch; 0 before the first."""
        return max(self.accuracies, default=0.0)

    @property
    def outlook(self) -> float:
        """Expected accuracy; never less than that of the best epoch, which serves in any case."""
        return max(self.expected_accuracy, self.best_accuracy)


@dataclass(frozen=True, slots=True)
class WindowLabels:
    """Labels of a stream for the open window.

    Attributes:
        training_crops, validation_crops: number in each part; 0 before LabelsReady.
        new_classes: they contain a class that the serving model does not know.
        histogram: number of labels of each class; empty where unknown.
        since_us: stream time of the drift since which they were drawn; None for those of the window before.
    """

    training_crops: int = 0
    validation_crops: int = 0
    new_classes: bool = False
    histogram: tuple[int, ...] = ()
    since_us: int | None = None


@dataclass(frozen=True, slots=True)
class RunningPreparation:
    """A preparation in progress.

    Attributes:
        began_us: begin of its time limit.
        round: number within the window.
        streams: those that it labels and profiles.
    """

    began_us: int
    round: int = 0
    streams: frozenset[StreamId] = frozenset()


@dataclass(frozen=True, slots=True)
class WindowProfiles:
    """Results of profiling γ for one stream in the open window.

    Attributes:
        curves: the micro-profiler's measurements.
        options: γ that were estimated in any other way.
        did_not_fit: γ and micro-profiles that lacked GPU memory.
    """

    curves: tuple[FamilyCurve, ...] = ()
    options: tuple[RetrainOption, ...] = ()
    did_not_fit: tuple[DidNotFit, ...] = ()

    def fits(self, config: RetrainConfig) -> bool:
        """Returns False if a γ or profile that needs no more memory failed for lack of it."""
        return not any(one.rules_out(config) for one in self.did_not_fit)


@dataclass(frozen=True, slots=True)
class StreamState:
    """State of one stream.

    Attributes:
        stream, added_in: its id, and the window in which it was added.
        faults: of its camera and workers.
        version: of the serving model.
        base_versions: those under which the base model has served.
        accuracy: of the serving model on the newest validation part that had any objects; None before it.
        adopting_over: the same of the base model, while another stream's weights are about to replace it.
        cached: its cached models.
        inference_options: Λ, as assumed or as last profiled.
        inference, inference_share_milli: λ and share of the last command.
        need: last measured need of inference; None before the first measurement.
        labels, profiles: of the open window.
        job: the retraining in progress.
        finished: the retraining that finished or failed in this window; None without one, and after one that
            failed for lack of memory before its first epoch, since a γ that needs less may still run.
        paces: durations of the window's undisturbed epochs.
        prepared_in: the last window in which it was to be labelled; None before the first.
        inference_profiled_in: the last window in which its λ were to be profiled; None before the first.
        drifted_us: stream time of a drift that no labels show yet, or few; None without one.
        relabelling: labels since that drift are being made, so what was trained on the old scene does not
            serve any more.
        reactions: number of preparations in the open window that answer drifts of this stream.
        more_labels_us: when its labels of a new scene are to be made again, since they show little of it.
    """

    stream: StreamId
    inference_options: tuple[InferenceOption, ...]
    added_in: int = 0
    faults: Faults = NO_FAULTS
    version: ModelVersion = BASE_VERSION
    base_versions: frozenset[ModelVersion] = ONLY_BASE
    accuracy: float | None = None
    adopting_over: float | None = None
    cached: tuple[CachedModel, ...] = ()
    inference: InferenceConfig | None = None
    inference_share_milli: int = 0
    need: ev.NeedMeasured | None = None
    labels: WindowLabels = WindowLabels()
    profiles: WindowProfiles = WindowProfiles()
    job: RetrainJob | None = None
    finished: RetrainJob | None = None
    paces: tuple[Pace, ...] = ()
    prepared_in: int | None = None
    inference_profiled_in: int | None = None
    drifted_us: int | None = None
    relabelling: bool = False
    reactions: int = 0
    more_labels_us: int | None = None

    @property
    def serves_base(self) -> bool:
        """True if the base model serves, also again after a roll-back."""
        return self.version in self.base_versions

    @property
    def status(self) -> Status:
        """Current status."""
        return self.faults.status[0]

    @property
    def reason(self) -> str:
        """Reason for not serving; empty while the stream serves."""
        return self.faults.status[1]

    @property
    def answering_accuracy(self) -> float | None:
        """Estimated accuracy of what answers: the serving model, or λ of the golden detector.

        None before it is known.
        """
        if self.inference is None or not self.inference.by_golden:
            return self.accuracy
        options = (option for option in self.inference_options if option.config == self.inference)
        return next((option.accuracy(0.0) for option in options), None)


@dataclass(frozen=True, slots=True)
class FleetState:
    """State of the run; streams are sorted by id.

    Attributes:
        window: index of the open window; -1 before the first.
        preparation: makes labels and profiles of this window; None if none is running.
        rounds: number of preparations of this window that answered drifts.
        lent_milli: spare capacity of the GPUs here that is lent to jobs of other servers.
    """

    streams: tuple[StreamState, ...] = ()
    window: int = -1
    window_open_us: int = 0
    window_end_us: int = 0
    preparation: RunningPreparation | None = None
    rounds: int = 0
    next_job: JobId = FIRST_JOB
    lent_milli: int = 0

    @property
    def preparing(self) -> bool:
        """True while labels and profiles are being made."""
        return self.preparation is not None

    def prepares(self, stream: StreamId) -> bool:
        """Returns whether labels and profiles of a stream are being made."""
        return self.preparation is not None and stream in self.preparation.streams

    def ends(self, event: ev.PreparationEnded) -> bool:
        """Returns whether the event is about the running preparation, and not about an earlier one."""
        running = self.preparation
        return running is not None and (event.window, event.round) == (self.window, running.round)

    def stream(self, stream: StreamId) -> StreamState:
        """Returns the state of one stream.

        Raises:
            KeyError: the stream was never added.
        """
        for state in self.streams:
            if state.stream == stream:
                return state
        raise KeyError(stream)

    def with_stream(self, changed: StreamState) -> "FleetState":
        """Returns the state with one stream replaced or added."""
        others = tuple(state for state in self.streams if state.stream != changed.stream)
        return replace(self, streams=tuple(sorted((*others, changed), key=lambda state: state.stream)))


def apply(state: FleetState, event: ev.Event) -> FleetState:
    """Returns the state after an event. Events of a past job or window change nothing."""
    match event:
        case ev.WindowOpened():
            labels, profiles = WindowLabels(), WindowProfiles()
            newest_us = _newest_us(event.t_us, event.end_us)
            return replace(
                state,
                streams=tuple(
                    replace(
                        stream,
                        labels=labels,
                        profiles=profiles,
                        job=None,
                        finished=None,
                        paces=(),
                        drifted_us=_still_new_us(stream, newest_us),
                        relabelling=False,
                        reactions=0,
                        more_labels_us=None,
                    )
                    for stream in state.streams
                ),
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
            return without_preparation(state) if state.ends(event) else state
        case ev.ProfilerBack():
            return state
        case ev.CapacityLent():
            return replace(state, lent_milli=event.share_milli)
        case ev.StreamAdded():
            return state.with_stream(
                StreamState(event.stream, event.inference_options, added_in=_window_at(state, event.t_us))
            )
        case _:
            return state.with_stream(_apply_to_stream(state, state.stream(event.stream), event))


def _newest_us(open_us: int, end_us: int) -> int:
    """Returns the middle of the window before: the labels of a window show scenes up to there.

    They are drawn from all of that window, so most of them show an older scene than one that began later.
    """
    return open_us - (end_us - open_us) // 2


def _still_new_us(stream: StreamState, newest_us: int) -> int | None:
    """Returns the stream time of a drift that a window's own labels will show too little of; None without."""
    since_us = stream.drifted_us
    if since_us is None and stream.more_labels_us is not None:
        since_us = stream.labels.since_us
    return since_us if since_us is not None and since_us > newest_us else None


def without_preparation(state: FleetState) -> FleetState:
    """Returns the state after the preparation has ended; a drift that it has not labelled may be taken up."""
    streams = tuple(
        replace(stream, relabelling=False) if stream.relabelling else stream for stream in state.streams
    )
    return replace(state, streams=streams, preparation=None)


def _at_share(state: FleetState, holder: ShareHolder, share_milli: int) -> FleetState:
    """Returns the state after a job has changed to another share."""
    if holder.work is not Work.RETRAINING or holder.stream is None:
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
            )
            # Without validation crops there is no new accuracy of the model.
            accuracy = event.serving_accuracy if event.validation_crops else stream.accuracy
            labelled = replace(stream, labels=labels, accuracy=accuracy, adopting_over=None)
            return labelled if event.since_us is None else _of_new_scene(labelled, event)
        case ev.DriftDetected() if event.window == state.window or event.since_us > _newest_us(
            state.window_open_us, state.window_end_us
        ):
            return replace(stream, drifted_us=event.since_us, more_labels_us=None)
        case ev.MoreLabelsDue() if event.window == state.window:
            return replace(stream, drifted_us=stream.labels.since_us, more_labels_us=None)
        case ev.InferenceProfiled() if event.window == state.window and event.options:
            return replace(stream, inference_options=event.options)
        case ev.ProfileReady() if event.window == state.window:
            return replace(stream, profiles=replace(known, curves=(*known.curves, event.curve)))
        case ev.RetrainProfiled() if event.window == state.window:
            return replace(stream, profiles=replace(known, options=(*known.options, *event.options)))
        case ev.MemoryShort() if event.window == state.window:
            return replace(stream, profiles=replace(known, did_not_fit=(*known.did_not_fit, event.what)))
        case ev.ModelCached():
            return replace(stream, cached=(*stream.cached, event.model))
        case ev.ModelSwapped() | ev.ModelAdopted():
            accuracy = event.validation_accuracy
            return replace(stream, version=event.version, accuracy=accuracy, adopting_over=None)
        case ev.RolledBack():
            base_versions = with_roll_back(stream.base_versions, event)
            return replace(stream, version=event.version, base_versions=base_versions)
        case ev.NeedMeasured():
            return replace(stream, need=event)
        case ev.WorkerDied() if stream.status not in OVER:
            return _after_death(stream, event)
        case ev.WorkerBack(role=ev.Role.INFERENCE):
            return replace(stream, faults=replace(stream.faults, down=None))
        case ev.StreamLost():
            return _not_serving(stream, lost=event.reason)
        case ev.StreamBack():
            return replace(stream, faults=replace(stream.faults, lost=None))
        case ev.StreamEnded():
            return _not_serving(stream, ended=True)
        case ev.RetrainProgress() | ev.RetrainFinished() | ev.RetrainFailed():
            return _apply_to_job(stream, event)
        case _:
            return stream


def _of_new_scene(stream: StreamState, event: ev.LabelsReady) -> StreamState:
    """Returns the stream without what is known of the scene before its new labels.

    It may be retrained again, whatever was retrained in the window before.
    """
    since_us = event.since_us or 0
    newer = stream.drifted_us is not None and stream.drifted_us > since_us
    enough_us = since_us + ENOUGH_SCENE_US
    return replace(
        stream,
        profiles=WindowProfiles(did_not_fit=stream.profiles.did_not_fit),
        finished=None,
        drifted_us=stream.drifted_us if newer else None,
        relabelling=False,
        more_labels_us=enough_us if event.t_us < enough_us and not newer else None,
    )


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
            try_another = not job.accuracies and not stream.profiles.fits(job.config)
            return replace(stream, job=None, finished=None if try_another else job)


def _pace(job: RetrainJob, now_us: int) -> tuple[Pace, ...]:
    """Returns the pace of an epoch that ends now; empty if its time is distorted."""
    if job.epoch_since_us is None or job.held_milli == 0:
        return ()
    return (Pace(job.job, job.held_milli, us_to_seconds(now_us - job.epoch_since_us)),)


def with_roll_back(base_versions: frozenset[ModelVersion], event: ev.RolledBack) -> frozenset[ModelVersion]:
    """Returns the versions under which a stream's base model has served, after a roll-back."""
    return base_versions | {event.version} if event.of in base_versions else base_versions


def _after_death(stream: StreamState, event: ev.WorkerDied) -> StreamState:
    if event.role is ev.Role.INFERENCE and stream.adopting_over is not None:
        # The weights died with it: the base model goes on, and the profiles are not of it.
        base = stream.adopting_over
        stream = replace(stream, accuracy=base, adopting_over=None, profiles=WindowProfiles())
    stream = replace(stream, faults=stream.faults.after_death(event))
    if stream.faults.set_aside is None and event.role is ev.Role.RETRAINING:
        return replace(stream, job=None, finished=stream.job or stream.finished)
    return _not_serving(stream)


def _not_serving(stream: StreamState, **fault: Any) -> StreamState:
    """Returns the stream after a fault, without inference, whose share the others get until it is back."""
    faults = replace(stream.faults, **fault)
    return replace(stream, faults=faults, inference=None, inference_share_milli=0)
