"""The fleet file: its schema, and how it is read, completed and written.

What belongs to one room (a camera's source, the golden model) is described beside its owner; this
file puts the parts together and checks what can only be checked of the whole.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from ekya.choices import Choices
from ekya.config_cameras import passwords_set_aside
from ekya.config_errors import describe
from ekya.config_files import find_files, read_mapping
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.ids import StreamId
from ekya.core.profile import Profiler
from ekya.core.units import FULL_GPU_MILLI
from ekya.core.view import Objective
from ekya.errors import UserError
from ekya.labeling.names import FILE
from ekya.labeling.proposer import ObjectsSpec
from ekya.labeling.spec import GoldenSpec
from ekya.learning.spec import EdgeSpec
from ekya.placement.homes import Processes
from ekya.placement.pack import Packing
from ekya.profiling.gate import ROLL_BACK_MARGIN, SERVE_MARGIN
from ekya.profiling.label_policy import LABEL_POLICIES
from ekya.runfolder import check_stream_name
from ekya.scheduling.registry import DEFAULT_SCHEDULER, make_scheduler
from ekya.shipped import shipped_root
from ekya.streams.credentials import masked
from ekya.streams.playing import PlayConfig, PlayedSpec
from ekya.streams.process import SourceSpec
from ekya.streams.sources import AnySource

DEFAULT_FLEET = "datasets/synthetic_city/fleet.yaml"
"""The shipped fleet that runs when no other is named."""

MAX_PREPARATION_FRACTION = 0.15
"""Labelling and profiling hold their share for at most this part of a window (DESIGN §4)."""

OPEN = (
    "gpus",
    "window_s",
    "quantum_milli",
    "steal_milli",
    "min_accuracy",
    "preparation.share_milli",
    "preparation.fraction",
    "preparation.streams",
    "preparation.frames",
    "inference.every",
    "inference.resolutions",
    "retraining.trainable_blocks",
)
"""Keys that are chosen from the machine and the fleet where the file leaves them out."""

AUTO_CLASSES = "auto"
"""In a fleet file: the classes are those that the golden model finds."""


class _Part(BaseModel):
    """A part of the file: it never changes, and a key that nobody reads is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class KeptFrames(StrEnum):
    """Which frames of a window are kept for the golden model."""

    DRAWN = "drawn"
    """Drawn by seed and window alone. A detector finds the objects in them beside those that λ looks at."""

    ANALYSED = "analysed"
    """Of those that λ looks at, which costs no inference."""


class PreparationConfig(_Part):
    """What labelling and profiling may take of a window.

    Attributes:
        share_milli: share that they hold together.
        fraction: the longest part of the window that they hold it.
        streams: how many streams are labelled and profiled in a window, in turn; None for all.
        frames: which of a window they are made from.
        profiler: how γ are micro-profiled: ``ekya``, or ``paper`` for the paper's plain version.
    """

    share_milli: int = Field(default=900, ge=1)
    fraction: float = Field(default=MAX_PREPARATION_FRACTION, gt=0, le=MAX_PREPARATION_FRACTION)
    streams: int | None = Field(default=None, ge=1)
    frames: KeptFrames = KeptFrames.DRAWN
    profiler: Profiler = Profiler.EKYA


class ShadowGateConfig(_Part):
    """When new weights may serve, and for how long.

    Attributes:
        margin: how much less of the newest labels they may get right than those that serve.
        roll_back: how much less than those before them of the labels of the window that they have served in;
            1 never goes back.
    """

    margin: float = Field(default=SERVE_MARGIN, ge=0, lt=1)
    roll_back: float = Field(default=ROLL_BACK_MARGIN, ge=0, le=1)


class RetrainingConfig(_Part):
    """Γ without ∅: every combination of these is a γ (see ``RetrainConfig`` for what they mean)."""

    epochs: Choices[Annotated[int, Field(ge=1)]] = (4, 8, 16)
    batch_sizes: Choices[Annotated[int, Field(ge=2)]] = (16,)
    head_widths: Choices[Annotated[int, Field(ge=0)]] = (0,)
    trainable_blocks: Choices[Annotated[int, Field(ge=0)]] = (0, 2)
    data_fractions: Choices[Annotated[float, Field(gt=0, le=1)]] = (0.5, 1.0)


class InferencesConfig(_Part):
    """Λ: every combination of the lists is a λ (see ``InferenceConfig`` for what they mean)."""

    every: Choices[Annotated[int, Field(ge=1)]] = (1, 2, 3, 5, 10)
    resolutions: Choices[Annotated[int, Field(ge=8, le=512)]] = (32, 24)


class StreamConfig(_Part):
    """One camera.

    Attributes:
        id: its name, which is also the name of files.
        weight: how much it counts in the mean that is maximised, against the other cameras.
        max_age_s: its latency limit: no result that stands may be older than this; None allows any age.
        source: where its frames come from.
        play: how a recording is played.
        objects: how its objects are found, where the source does not know them.
    """

    id: StreamId
    weight: float = Field(default=1.0, gt=0)
    max_age_s: float | None = Field(default=None, gt=0)
    source: AnySource
    play: PlayConfig = PlayConfig()
    objects: ObjectsSpec = ObjectsSpec()

    @property
    def played(self) -> SourceSpec:
        """Its frames as they come: the source as it is to be played."""
        return self.source if self.play == PlayConfig() else PlayedSpec(source=self.source, play=self.play)

    @property
    def first_pass(self) -> SourceSpec:
        """The part of it that is scored, as it is by daylight."""
        return PlayedSpec(source=self.source, play=self.play.to_score())

    @property
    def unbroken(self) -> SourceSpec:
        """Its first pass, if it were never lost: what labels are made ahead of."""
        return PlayedSpec(source=self.source, play=self.play.to_label())

    @field_validator("id")
    @classmethod
    def _can_be_a_file_name(cls, stream: StreamId) -> StreamId:
        try:
            check_stream_name(stream)
        except UserError as error:
            raise ValueError(str(error)) from error
        return stream


class FleetConfig(_Part):
    """Cameras, the machine's part that they share, and the choices that the scheduler has.

    Sizes that a file leaves out (``OPEN``) have provisional values here, until ``sizing.fitted`` chooses them
    for the machine.

    Attributes:
        name: of the fleet, and of its runs unless they are given another.
        classes: what objects are told apart as; None (``auto`` in the file) takes those that the
            golden model finds, which only real video leaves open.
        gpus: how many GPUs the fleet may use; on a CPU machine one GPU is one core.
        window_s: T, length of a retraining window in seconds.
        windows: how many; None goes on until the streams end.
        min_accuracy: a_MIN (paper §4.2).
        objective: what is maximised, ``mean`` or ``max-min`` (the paper's footnote 3).
        quantum_milli, steal_milli: δ and Δ.
        scheduler: who decides, with its options behind it, as in ``uniform:inference=300``.
        placement: how shares come to stand on GPUs; ``pool`` is for cores, which jobs may change at will.
        processes: which streams share a process of a live run; other worlds have one for everything.
        hand_over: how retrained weights come to inference; ``cuda-ipc`` is for a live run on GPUs.
        preparation, golden, edge, retraining, inference, shadow_gate: see there.
        streams: sorted by id.
    """

    name: str = "fleet"
    classes: Choices[Annotated[str, Field(min_length=1)]] | None = None
    gpus: float = Field(default=1.0, gt=0)
    window_s: float = Field(default=16.0, gt=0)
    windows: int | None = Field(default=None, ge=1)
    min_accuracy: float = Field(default=0.4, ge=0, lt=1)
    objective: Objective = Objective.MEAN
    quantum_milli: int = Field(default=50, ge=1, le=FULL_GPU_MILLI)
    steal_milli: int = Field(default=100, ge=1, le=FULL_GPU_MILLI)
    scheduler: str = DEFAULT_SCHEDULER
    placement: Packing = Packing.POOL
    processes: Processes = Processes.AUTO
    hand_over: Literal["object-store", "cuda-ipc"] = "object-store"
    preparation: PreparationConfig = PreparationConfig()
    golden: GoldenSpec
    edge: EdgeSpec = EdgeSpec()
    retraining: RetrainingConfig = RetrainingConfig()
    inference: InferencesConfig = InferencesConfig()
    shadow_gate: ShadowGateConfig = ShadowGateConfig()
    streams: tuple[StreamConfig, ...] = Field(min_length=1)

    def says(self, key: str) -> bool:
        """Whether a value was given for a key, such as ``preparation.share_milli``, or chosen since."""
        part, _, name = key.rpartition(".")
        said: _Part = getattr(self, part) if part else self
        return name in said.model_fields_set

    @property
    def capacity_milli(self) -> int:
        """All GPUs of the fleet together, in whole quanta."""
        return round(self.gpus * FULL_GPU_MILLI) // self.quantum_milli * self.quantum_milli

    def stream(self, stream: StreamId) -> StreamConfig:
        """The camera of that id, which the fleet has."""
        return next(one for one in self.streams if one.id == stream)

    def retrain_configs(self) -> tuple[RetrainConfig, ...]:
        """Γ without ∅, sorted."""
        lists = self.retraining
        return tuple(
            sorted(
                RetrainConfig(*values)
                for values in product(
                    lists.epochs,
                    lists.batch_sizes,
                    lists.head_widths,
                    lists.trainable_blocks,
                    lists.data_fractions,
                )
            )
        )

    def inference_configs(self) -> tuple[InferenceConfig, ...]:
        """Λ, sorted."""
        lists = self.inference
        return tuple(sorted(InferenceConfig(*values) for values in product(lists.every, lists.resolutions)))

    @model_validator(mode="before")
    @classmethod
    def _processes_of_old_files(cls, raw: object) -> object:
        """Takes ``inference: {process: ...}``, as files said it when only inference could share."""
        inference = raw.get("inference") if isinstance(raw, dict) else None
        if not isinstance(raw, dict) or not isinstance(inference, dict) or "process" not in inference:
            return raw
        others = {key: value for key, value in inference.items() if key != "process"}
        return {"processes": inference["process"], **raw, "inference": others}

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        try:
            check_stream_name(StreamId(name))
        except UserError as error:
            raise ValueError("use letters, digits, '-', '_' and '.' only") from error
        return name

    @field_validator("scheduler")
    @classmethod
    def _can_decide(cls, scheduler: str) -> str:
        try:
            make_scheduler(scheduler)
        except UserError as error:
            raise ValueError(str(error).removeprefix("scheduler: ")) from error
        return scheduler

    @field_validator("classes", mode="before")
    @classmethod
    def _auto_is_none(cls, classes: object) -> object:
        if isinstance(classes, str) and classes != AUTO_CLASSES:
            raise ValueError(f"write a list of names, or {AUTO_CLASSES}")
        return None if classes == AUTO_CLASSES else classes

    @field_serializer("classes")
    def _none_is_auto(self, classes: tuple[str, ...] | None) -> str | tuple[str, ...]:
        return AUTO_CLASSES if classes is None else classes

    @field_validator("streams")
    @classmethod
    def _one_of_each_sorted(cls, streams: tuple[StreamConfig, ...]) -> tuple[StreamConfig, ...]:
        ids = [stream.id for stream in streams]
        twice = sorted({one for one in ids if ids.count(one) > 1})
        if twice:
            raise ValueError(f"two streams are called {twice[0]}; give each its own id")
        return tuple(sorted(streams, key=lambda stream: stream.id))

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> "FleetConfig":
        for problem in chain(_problems(self), _misfits(self, changed=info.context or ())):
            raise ValueError(problem)
        return self


def _misfits(fleet: FleetConfig, changed: Collection[str]) -> Iterator[str]:
    """Sizes of one file that contradict each other; ``changed`` ones, and those that are open, are fitted."""
    held = fleet.preparation.share_milli
    quantum = fleet.quantum_milli if fleet.says("quantum_milli") else 1
    for key, value in (("steal_milli", fleet.steal_milli), ("preparation.share_milli", held)):
        if fleet.says(key) and value % quantum:
            yield f"{key}: {value} is not a multiple of quantum_milli, {quantum}; make it one"
    if changed or not fleet.says("preparation.share_milli"):
        return
    least_milli = held + len(fleet.streams) * quantum
    if fleet.says("gpus") and fleet.gpus * FULL_GPU_MILLI < least_milli:
        yield (
            f"gpus: {fleet.gpus:g} is too little for preparation.share_milli, {held}, beside "
            f"{quantum} for each of {len(fleet.streams)} streams; use at least "
            f"{least_milli / FULL_GPU_MILLI:g}, or a smaller preparation.share_milli"
        )


def _problems(fleet: FleetConfig) -> Iterator[str]:
    """What is wrong with the whole; each sentence begins with the key."""
    for stream in fleet.streams:
        if stream.source.gives_truth and stream.objects != ObjectsSpec():
            yield f"streams.{stream.id}.objects: its source knows its objects; remove it"
        if stream.source.live and stream.play != PlayConfig():
            yield f"streams.{stream.id}.play: a live camera gives its frames as they happen; remove it"
        end_s = math.inf if fleet.windows is None else fleet.windows * fleet.window_s
        yield from (f"streams.{stream.id}.play.script: {problem}" for problem in stream.play.after(end_s))
        if fleet.golden.model == FILE and stream.play.outages_us:
            yield (
                f"streams.{stream.id}.play.script: the golden model {FILE!r} finds labels by the number of a "
                "frame, and no frame is numbered while the camera is lost; remove lost, or use another one"
            )
    looped = [stream.id for stream in fleet.streams if stream.play.loop]
    if looped and fleet.windows is None:
        yield f"windows: {looped[0]} is looped and never ends; say how many windows to run"
    if (too_many := fleet.edge.too_many(max(fleet.retraining.trainable_blocks))) is not None:
        yield f"retraining.trainable_blocks: {too_many}"
    if fleet.golden.policy not in LABEL_POLICIES:
        known = ", ".join(LABEL_POLICIES)
        yield f"golden.policy: no policy is called '{fleet.golden.policy}'; use one of {known}"
    labelled = [stream.id for stream in fleet.streams if stream.source.gives_truth]
    if fleet.classes is None and labelled:
        yield f"classes: {AUTO_CLASSES} is for unlabelled video, and {labelled[0]} is none; list the names"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is said of one run, beside its fleet.

    Attributes:
        scheduler: its name.
        seed: of everything that is drawn.
        runs: folder in which the run's folder is made.
        name: of the run; None takes the fleet's.
        shares: name of a share backend, or ``auto``.
        dashboard: whether Ray's dashboard is started.
        resume: folder of the run to go on with, or None.
        interactive: whether somebody watches a terminal.
        overload: whether to run where not even the coarsest inference of all cameras fits.
        card: cost card that durations on virtual time are taken from; None is the shipped one.
    """

    scheduler: str = DEFAULT_SCHEDULER
    seed: int = 0
    runs: Path = Path("runs")
    name: str | None = None
    shares: str = "auto"
    dashboard: bool = True
    resume: Path | None = None
    interactive: bool = False
    overload: bool = False
    card: Path | None = None


def load_fleet(path: Path, changes: Mapping[str, object] | None = None) -> FleetConfig:
    """Reads a fleet file; its relative paths begin at its folder, or at Ekya's own data.

    Args:
        path: the file.
        changes: top-level keys to set instead of what the file says, as from the command line.

    Raises:
        UserError: one sentence with file, key and remedy.
    """
    raw = read_mapping(path)
    origin = f"{path} with {', '.join(changes)} from the command line" if changes else str(path)
    folders = (path.parent, shipped_root())
    return parse_fleet({**raw, **(changes or {})}, origin, folders, changed=changes or ())


def with_play(fleet: FleetConfig, changes: Mapping[str, object]) -> FleetConfig:
    """The fleet with the same said of how every recording is played, as from the command line.

    Raises:
        UserError: as ``load_fleet``.
    """
    raw = _said(fleet)
    streams = [
        stream if known.source.live else {**stream, "play": {**stream["play"], **changes}}
        for known, stream in zip(fleet.streams, raw["streams"], strict=True)
    ]
    return parse_fleet({**raw, "streams": streams}, "command line", (Path(),), changed=changes)


def _said(fleet: FleetConfig) -> dict[str, Any]:
    """A fleet as JSON values, without the sizes that are open."""
    raw: dict[str, Any] = fleet.model_dump(mode="json")
    for key in OPEN:
        if not fleet.says(key):
            part, _, name = key.rpartition(".")
            del (raw[part] if part else raw)[name]
    return raw


def dump_fleet(fleet: FleetConfig) -> str:
    """YAML that ``load_fleet`` reads back to the same fleet, wherever the file lies."""
    return yaml.safe_dump(_said(fleet), sort_keys=False, allow_unicode=True)


def parse_fleet(
    raw: Mapping[str, object], origin: str, folders: Sequence[Path], changed: Collection[str] = ()
) -> FleetConfig:
    """A fleet from keys and values.

    Args:
        raw: as in a fleet file.
        origin: what errors call it.
        folders: where relative paths begin.
        changed: top-level keys that were set since the file was written. With any, sizes of the file that do
            not go with them are no error: they are fitted.

    Raises:
        UserError: as ``load_fleet``.
    """
    try:
        fleet = FleetConfig.model_validate(raw, context=set(changed))
    except ValidationError as error:
        raise UserError(masked(f"{origin}: {describe(error, raw, FleetConfig)}")) from None
    sources = passwords_set_aside({stream.id: stream.source for stream in fleet.streams})
    streams = tuple(stream.model_copy(update={"source": sources[stream.id]}) for stream in fleet.streams)
    return find_files(fleet.model_copy(update={"streams": streams}), origin, folders)
