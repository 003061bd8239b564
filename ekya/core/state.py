"""State of the loop: the run, its streams and their retrainings."""

from dataclasses import dataclass, replace

from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.areas import Areas
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.gpus import DidNotFit
from ekya.core.profile import FamilyCurve
from ekya.core.speed import Pace
from ekya.core.stream_faults import NO_FAULTS, Faults, Status
from ekya.core.units import (
    BASE_VERSION,
    FIRST_JOB,
    JobId,
    ModelVersion,
    StreamId,
)
from ekya.core.view import InferenceOption, RetrainOption
from ekya.core.weights import CachedModel, Elsewhere, LabelBudget


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
        accuracy_before: of the model that served when it began; None if that was unknown.
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
    accuracy_before: float | None = None
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
        since_us: stream time since which they were drawn; None for those of the window before.
        until_us: stream time up to which they were drawn; None before any.
        accuracy_on_all: see ``LabelsReady``.
        pooled: number of other labels of the same scene that a retraining learns from as well.
        objects: number of objects in the labelled frames of a stream that detects; None elsewhere.
    """

    training_crops: int = 0
    validation_crops: int = 0
    new_classes: bool = False
    histogram: tuple[int, ...] = ()
    since_us: int | None = None
    pooled: int = 0
    until_us: int | None = None
    accuracy_on_all: float | None = None
    objects: int | None = None

    @property
    def labelled_objects(self) -> int:
        """Number of objects that have a label."""
        return self.training_crops + self.validation_crops if self.objects is None else self.objects

    @property
    def learnt_crops(self) -> int:
        """Number of labels that a retraining on all data learns from."""
        return self.training_crops + self.pooled


@dataclass(frozen=True, slots=True)
class RunningPreparation:
    """A preparation in progress.

    Attributes:
        began_us: begin of its time limit.
        share_milli: share of its command.
        round: number within the window.
        streams: those that it labels and profiles.
    """

    began_us: int
    share_milli: int
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

    def has_room_for(self, config: RetrainConfig) -> bool:
        """Returns False if a γ or profile that needs no more memory failed for lack of it."""
        return not any(one.rules_out(config) for one in self.did_not_fit)


@dataclass(frozen=True, slots=True)
class StreamState:
    """State of one stream.

    Attributes:
        stream, added_in: its id, and the window in which it was added.
        faults: of its camera and workers.
        version: of the serving model.
        accuracy: of the serving model on the newest validation part that had any objects; None before it.
        cached: its cached models.
        inference_options: Λ, as assumed or as last profiled.
        inference, inference_share_milli: λ and share of the last command.
        need: last measured need of inference; None before the first measurement.
        inference_measured: Λ were profiled at some time.
        labels, profiles: of the open window.
        job: the retraining in progress.
        finished: the retraining that finished or failed in this window; None without one, and after one that
            failed for lack of memory before its first epoch, since a γ that needs less may still run.
        paces: durations of the window's undisturbed epochs.
        prepared_in: the last window in which it was to be prepared; None before the first.
        inference_profiled_in: the last window in which its λ were to be profiled; None before the first.
        scene_us: stream time since which it has shown its scene: of its last drift; None before the first.
        drifted_us: stream time of a drift that no labels show yet, or few; None without one.
        relabelling: labels since that drift are being made, so what was trained on the old scene does not
            serve any more.
        reactions: number of preparations in the open window that answer drifts of this stream.
        more_labels_us: when its labels of a new scene are to be made again, since they show little of it.
        frozen: it keeps the model that serves.
        terms: its terms, where they have changed since the run began.
        areas: where its objects count, where that has changed since the run began.
        removed: it is to be forgotten when the next window opens.
        requested: an operator has asked for labels that are not made yet.
        gpu: of its processes, where it was added to a live run or has moved; None where the options name it.
    """

    stream: StreamId
    inference_options: tuple[InferenceOption, ...]
    added_in: int = 0
    faults: Faults = NO_FAULTS
    version: ModelVersion = BASE_VERSION
    accuracy: float | None = None
    cached: tuple[CachedModel, ...] = ()
    inference: InferenceConfig | None = None
    inference_share_milli: int = 0
    inference_measured: bool = False
    need: ev.NeedMeasured | None = None
    labels: WindowLabels = WindowLabels()
    profiles: WindowProfiles = WindowProfiles()
    job: RetrainJob | None = None
    finished: RetrainJob | None = None
    paces: tuple[Pace, ...] = ()
    prepared_in: int | None = None
    inference_profiled_in: int | None = None
    scene_us: int | None = None
    drifted_us: int | None = None
    relabelling: bool = False
    reactions: int = 0
    more_labels_us: int | None = None
    frozen: bool = False
    terms: rq.TermsChanged | None = None
    areas: Areas | None = None
    removed: bool = False
    requested: bool = False
    gpu: int | None = None

    @property
    def status(self) -> Status:
        """Current status."""
        return self.faults.status[0]

    @property
    def reason(self) -> str:
        """Reason for not serving; empty while the stream serves."""
        return self.faults.status[1]

    @property
    def serves_retrained(self) -> bool:
        """Whether weights serve that were retrained on the labels of the open window."""
        return self.finished is not None or (self.job is not None and self.job.served_epoch > 0)

    @property
    def answering_accuracy(self) -> float | None:
        """Estimated accuracy of what answers: the serving model, or λ of the golden detector.

        None before it is known.
        """
        if self.inference is None or not self.inference.by_golden:
            return self.accuracy
        options = (option for option in self.inference_options if option.config == self.inference)
        return next((option.accuracy_with(0.0) for option in options), None)


@dataclass(frozen=True, slots=True)
class FleetState:
    """State of the run; streams are sorted by id.

    Attributes:
        window: index of the open window; -1 before the first.
        preparation: makes labels and profiles of this window; None if none is running.
        rounds: number of preparations of this window after its own.
        profiler_down: the micro-profiler is loading its models.
        lent_milli: spare capacity of the GPUs here that is lent to jobs of other servers.
        min_accuracy: a_MIN, where it has changed since the run began.
        scheduler: name of the one that decides, where it has changed since the run began.
        capacity: of the GPUs, where it has changed since the run began.
        lost_gpus: GPUs or cores of nodes that are gone, one at least of each.
        label_budget: of preparations, where it has changed since the run began.
        forgotten: streams that were removed and are not in ``streams`` any more, the newest last;
            see ``effects.MOST_FORGOTTEN``.
    """

    streams: tuple[StreamState, ...] = ()
    window: int = -1
    window_open_us: int = 0
    window_end_us: int = 0
    preparation: RunningPreparation | None = None
    rounds: int = 0
    profiler_down: bool = False
    next_job: JobId = FIRST_JOB
    lent_milli: int = 0
    min_accuracy: float | None = None
    scheduler: str | None = None
    capacity: rq.CapacityChanged | None = None
    lost_gpus: tuple[int, ...] = ()
    label_budget: LabelBudget | None = None
    forgotten: tuple[StreamId, ...] = ()

    @property
    def preparing(self) -> bool:
        """True while labels and profiles are being made."""
        return self.preparation is not None

    def is_preparing(self, stream: StreamId) -> bool:
        """Returns whether labels and profiles of a stream are being made."""
        return self.preparation is not None and stream in self.preparation.streams

    def ends_preparation(self, event: ev.PreparationEnded) -> bool:
        """Returns whether the event is about the running preparation, and not about an earlier one."""
        running = self.preparation
        return running is not None and (event.window, event.round) == (self.window, running.round)

    def without_preparation(self) -> "FleetState":
        """Returns the state after the preparation; a drift that it has not labelled may be taken up."""
        streams = tuple(
            replace(stream, relabelling=False) if stream.relabelling else stream for stream in self.streams
        )
        return replace(self, streams=streams, preparation=None)

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
