"""The fleet file: its top level, and the constraints between its sections.

Sections that belong to one package (a camera's source, the golden model) are defined in that package, the
others in ``config/fleet_sections.py``.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import chain, product
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import (
    Field,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from ekya.config.answer_sinks import AnySink, find_repeated_name
from ekya.config.fleet_sections import (
    DriftConfig,
    FleetSection,
    HttpConfig,
    InferencesConfig,
    LendingConfig,
    PreparationConfig,
    RetentionConfig,
    RetrainingConfig,
    ShadowGateConfig,
    StreamConfig,
)
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig, RetrainConfig
from ekya.core.errors import UserError
from ekya.core.objects import BACKGROUND
from ekya.core.unique_tuple import UniqueTuple
from ekya.core.units import FULL_GPU_MILLI, StreamId
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.spec import SIDE_STEP, EdgeSpec
from ekya.models.golden.spec import FILE, ONNX, GoldenSpec, detector_of
from ekya.models.proposer import ObjectsSpec
from ekya.planning.placement.homes import Processes
from ekya.planning.placement.pack import Packing
from ekya.planning.schedulers.registry import DEFAULT_SCHEDULER, make_scheduler, preset_of
from ekya.results.storage.run_folder import check_stream_name
from ekya.streams.ingest.playing import PlayConfig

DEFAULT_FLEET = "datasets/synthetic_city/fleet.yaml"
"""The shipped fleet that runs when no other is named."""

OPEN: Mapping[str, str] = MappingProxyType(
    {
        "gpus": "capacity_milli",
        "window_s": "window_s",
        "quantum_milli": "quantum_milli",
        "steal_milli": "steal_milli",
        "min_accuracy": "min_accuracy",
        "preparation.share_milli": "preparation_milli",
        "preparation.fraction": "preparation_part",
        "preparation.streams": "prepared",
        "preparation.frames": "draws_frames",
        "inference.every": "every",
        "inference.resolutions": "resolutions",
        "inference.golden_every": "golden_every",
        "retraining.trainable_blocks": "trainable_blocks",
    }
)
"""Keys that are chosen for the machine and the fleet if the file omits them, by their names in ``Sizes``."""

LABELLED_FRAMES = "golden.frames_per_window"
"""Key that is chosen, too, for models that detect."""

AUTO_CLASSES = "auto"
"""Value of ``classes`` in a fleet file: use the classes that the golden model finds."""


class FleetConfig(FleetSection):
    """Cameras, their part of the machine, and the configurations that the scheduler chooses from.

    Sizes that a file omits (``OPEN``) have provisional values here until ``sizing.fitted`` chooses them
    for the machine.

    Attributes:
        name: name of the fleet, and by default of its runs.
        classes: class names; None (``auto`` in the file) takes the classes that the golden model finds,
            which is possible for unlabelled video only.
        gpus: number of GPUs that the fleet may use; on a CPU machine one GPU is one core.
        window_s: T, length of a retraining window in seconds.
        windows: number of windows; None runs until the streams end.
        min_accuracy: a_MIN, the lowest accuracy that inference of a stream may have (paper §4.2).
        quantum_milli: δ, of which every share is a multiple, in thousandths of a GPU.
        steal_milli: Δ, what the thief moves at a time, in thousandths of a GPU.
        scheduler: name of the scheduler with its options and preset, as in ``uniform:inference=300@paper``.
        checkpoints: whether weights may serve while their retraining goes on.
        placement: how shares are packed on GPUs; ``pool`` is for cores, which jobs may change freely.
        processes: which streams share a process of a live run; the other worlds use one process.
        preparation, golden, edge, retraining, inference, shadow_gate, drift, retention, http, lending: see
            the types.
        answers: where ``ekya serve`` sends what it sees; other commands send nothing.
        streams: the cameras, in any order.
        pretraining: labelled recordings that no run plays; ``ekya edge train`` and ``ekya golden train``
            learn from them, and measure on ``streams``.
    """

    name: str = "fleet"
    classes: UniqueTuple[Annotated[str, Field(min_length=1)]] | None = None
    gpus: float = Field(default=1.0, gt=0)
    window_s: float = Field(default=16.0, gt=0)
    windows: int | None = Field(default=None, ge=1)
    min_accuracy: float = Field(default=0.4, ge=0, lt=1)
    quantum_milli: int = Field(default=50, ge=1, le=FULL_GPU_MILLI)
    steal_milli: int = Field(default=100, ge=1, le=FULL_GPU_MILLI)
    scheduler: str = DEFAULT_SCHEDULER
    checkpoints: bool = True
    placement: Packing = Packing.POOL
    processes: Processes = Processes.AUTO
    preparation: PreparationConfig = PreparationConfig()
    golden: GoldenSpec
    edge: EdgeSpec = EdgeSpec()
    retraining: RetrainingConfig = Field(default=RetrainingConfig(), validate_default=True)
    inference: InferencesConfig = Field(default=InferencesConfig(), validate_default=True)
    shadow_gate: ShadowGateConfig = ShadowGateConfig()
    drift: DriftConfig = DriftConfig()
    retention: RetentionConfig = RetentionConfig()
    answers: tuple[AnySink, ...] = ()
    http: HttpConfig = HttpConfig()
    lending: LendingConfig = LendingConfig()
    streams: tuple[StreamConfig, ...] = Field(min_length=1)
    pretraining: tuple[StreamConfig, ...] = ()

    def is_set(self, key: str) -> bool:
        """Returns whether a key, such as ``preparation.share_milli``, was set in the file or chosen since."""
        part, _, name = key.rpartition(".")
        section: FleetSection = getattr(self, part) if part else self
        return name in section.model_fields_set

    @property
    def capacity_milli(self) -> int:
        """Capacity of all GPUs of the fleet together, rounded down to whole quanta."""
        return round(self.gpus * FULL_GPU_MILLI) // self.quantum_milli * self.quantum_milli

    @property
    def named_secrets(self) -> str:
        """Text that names the environment variables with the fleet's secrets, for ``credentials.masked``."""
        parts = (*(stream.source for stream in self.streams), *self.answers, *self.lending.borrow_from)
        return " ".join(part.model_dump_json() for part in parts)

    def with_preset(self, scheduler: str) -> "FleetConfig":
        """Returns the fleet with the settings of a scheduler's preset; unchanged where it names none."""
        preset = preset_of(scheduler)
        if preset is None:
            return self
        changes = {
            "preparation": self.preparation.model_copy(update={"profiler": preset.profiler}),
            "window_s": self.window_s if self.is_set("window_s") else preset.window_s,
        }
        return self.model_copy(update=changes)

    def with_pretraining(self) -> "FleetConfig":
        """Returns the fleet with those for pretraining among its streams, to be labelled or learnt from."""
        return self.model_copy(update={"streams": (*self.streams, *self.pretraining)})

    @property
    def offers_golden(self) -> bool:
        """Whether λ of the golden detector are, or may be chosen to be, among Λ.

        Where the file leaves it open, they may for detectors on unlabelled video, whose answers the golden
        detector judges.
        """
        if self.is_set("inference.golden_every"):
            return bool(self.inference.golden_every)
        unlabelled = not any(stream.source.gives_truth for stream in self.streams)
        return self.edge.task is Task.DETECT and unlabelled and detector_of(self.golden) is not None

    def stream(self, stream: StreamId) -> StreamConfig:
        """Returns the stream with this id, which must exist."""
        return next(one for one in self.streams if one.id == stream)

    def retrain_configs(self) -> tuple[RetrainConfig, ...]:
        """Returns Γ without ∅, sorted."""
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
        """Returns Λ, sorted."""
        lists = self.inference
        pairs = chain(
            product(lists.every, lists.resolutions), product(lists.golden_every, [GOLDEN_RESOLUTION])
        )
        return tuple(sorted(InferenceConfig(*pair) for pair in pairs))

    @field_validator("retraining")
    @classmethod
    def _retraining_of_task(cls, lists: RetrainingConfig, info: ValidationInfo) -> RetrainingConfig:
        edge: EdgeSpec | None = info.data.get("edge")  # None if it is not valid
        return lists.for_detector() if edge is not None and edge.task is Task.DETECT else lists

    @field_validator("inference")
    @classmethod
    def _inference_of_task(cls, lists: InferencesConfig, info: ValidationInfo) -> InferencesConfig:
        edge: EdgeSpec | None = info.data.get("edge")
        return lists.for_detector(edge.resolution) if edge is not None and edge.task is Task.DETECT else lists

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

    @field_validator("classes", mode="before", json_schema_input_type=Literal["auto"] | UniqueTuple[str])
    @classmethod
    def _auto_is_none(cls, classes: object) -> object:
        if isinstance(classes, str) and classes != AUTO_CLASSES:
            raise ValueError(f"write a list of names, or {AUTO_CLASSES}")
        return None if classes == AUTO_CLASSES else classes

    @field_serializer("classes")
    def _none_is_auto(self, classes: tuple[str, ...] | None) -> str | tuple[str, ...]:
        return AUTO_CLASSES if classes is None else classes

    @field_validator("streams", "pretraining")
    @classmethod
    def _one_of_each_sorted(
        cls, streams: tuple[StreamConfig, ...], info: ValidationInfo
    ) -> tuple[StreamConfig, ...]:
        # With pretraining, which comes last, both are checked together.
        ids = [stream.id for stream in (*info.data.get("streams", ()), *streams)]
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
    """Yields contradictions between sizes of a file; ``changed`` and open sizes are fitted, not checked."""
    held = fleet.preparation.share_milli
    quantum = fleet.quantum_milli if fleet.is_set("quantum_milli") else 1
    for key, value in (("steal_milli", fleet.steal_milli), ("preparation.share_milli", held)):
        if fleet.is_set(key) and value % quantum:
            yield f"{key}: {value} is not a multiple of quantum_milli, {quantum}; make it one"
    if changed or not fleet.is_set("preparation.share_milli"):
        return
    least_milli = held + len(fleet.streams) * quantum
    if fleet.is_set("gpus") and fleet.gpus * FULL_GPU_MILLI < least_milli:
        yield (
            f"gpus: {fleet.gpus:g} is too little for preparation.share_milli, {held}, beside "
            f"{quantum} for each of {len(fleet.streams)} streams; use at least "
            f"{least_milli / FULL_GPU_MILLI:g}, or a smaller preparation.share_milli"
        )


def _problems(fleet: FleetConfig) -> Iterator[str]:
    """Yields problems of the whole file; each sentence begins with the key."""
    if fleet.edge.task is Task.DETECT:
        yield from _problems_of_detectors(fleet)
    if fleet.inference.golden_every and (
        fleet.edge.task is not Task.DETECT or detector_of(fleet.golden) is None
    ):
        yield (
            f"inference.golden_every: is for edge.task: {Task.DETECT} with a detector as the golden model, "
            f"such as {ONNX}; remove it"
        )
    for stream in fleet.pretraining:
        if stream.source.live:
            yield f"pretraining.{stream.id}.source: a live camera brings no labels; name a labelled recording"
    for stream in fleet.streams:
        if stream.source.gives_truth and stream.objects != ObjectsSpec():
            yield f"streams.{stream.id}.objects: its source knows its objects; remove it"
        if stream.source.live and stream.play != PlayConfig():
            yield f"streams.{stream.id}.play: a live camera gives its frames as they happen; remove it"
        end_s = math.inf if fleet.windows is None else fleet.windows * fleet.window_s
        yield from (
            f"streams.{stream.id}.play.script: {problem}" for problem in stream.play.problems_after(end_s)
        )
        if fleet.golden.model == FILE and stream.play.outages_us:
            yield (
                f"streams.{stream.id}.play.script: the golden model {FILE!r} finds labels by the number of a "
                "frame, and no frame is numbered while the camera is lost; remove lost, or use another one"
            )
    if (too_many := fleet.edge.too_many(max(fleet.retraining.trainable_blocks))) is not None:
        yield f"retraining.trainable_blocks: {too_many}"
    if (clash := find_repeated_name(fleet.answers)) is not None:
        yield f"answers: {clash}"
    needed = "frames" if fleet.edge.task is Task.DETECT else "crops"
    if fleet.lending.borrow_from and fleet.lending.samples_may_leave not in (needed, "frames"):
        yield (
            f"lending.samples_may_leave: who trains for these cameras gets their {needed}; write {needed}, "
            "or remove lending.borrow_from"
        )
    labelled = [stream.id for stream in fleet.streams if stream.source.gives_truth]
    if fleet.classes is None and labelled:
        yield f"classes: {AUTO_CLASSES} is for unlabelled video, and {labelled[0]} is none; list the names"


def _problems_of_detectors(fleet: FleetConfig) -> Iterator[str]:
    """Yields what does not go with edge models that detect."""
    if detector_of(fleet.golden) is None and fleet.golden.model != FILE:
        yield (
            f"golden.model: {fleet.golden.model} only names objects, and edge.task is {Task.DETECT}; use a "
            f"detector, such as {ONNX}, or edge.task: {Task.CLASSIFY}"
        )
    if BACKGROUND in (fleet.classes or ()):
        yield f"classes: a detector does not find '{BACKGROUND}'; remove it"
    if fleet.retraining.head_widths != (0,):
        yield "retraining.head_widths: a detector has heads of its own; remove the key, or write [0]"
    for side in fleet.inference.resolutions:
        if side % SIDE_STEP or side > fleet.edge.resolution:
            yield (
                f"inference.resolutions: {side} is no side of a detector's input; use multiples of "
                f"{SIDE_STEP} of edge.resolution, {fleet.edge.resolution}, at most"
            )
    for stream in fleet.streams:
        if stream.objects != ObjectsSpec():
            yield f"streams.{stream.id}.objects: a detector finds the objects itself; remove it"
