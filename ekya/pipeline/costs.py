"""Cost card of a device: converts counted operations to GPU-seconds, the same on every machine.

Sizes of a fleet are fitted to them where a run is in virtual time.
"""

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, field, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_sections import StreamConfig
from ekya.config.sizing import ANY_MACHINE, fit_fleet, resolutions_to_measure
from ekya.core.configs import GOLDEN_RESOLUTION, REPLAY_RATIO, RetrainConfig
from ekya.core.errors import UserError
from ekya.core.host import TYPICAL_FRAME, TYPICAL_OBJECTS, HostCosts, StreamCosts
from ekya.core.profile import Family, FamilyCost, family_of
from ekya.core.units import FULL_GPU_MILLI
from ekya.models.edge.architecture_table import DEFAULT_ARCHITECTURE, Task, task_of
from ekya.models.edge.forward import MOST_IMAGES
from ekya.models.golden.golden_model import GOLDEN_SCORE, open_detector_of
from ekya.models.golden.spec import CLASSIFIERS, FILE, detector_of
from ekya.models.training.augmentation import VERSIONS
from ekya.models.training.labelled import VALIDATION_FRACTION
from ekya.models.training.microprofile import Price
from ekya.models.training.operations import (
    RetrainingCost,
    TrainingCrops,
    forward_operations,
    training_cost,
)
from ekya.pipeline.gpu_facts import CARDS, GpuFacts, shipped_cards
from ekya.pipeline.setup import crop_side, proposer_for
from ekya.planning.sizing.fleet_sizes import MachineSize
from ekya.streams.ingest.camera import ASSUMED_FPS
from ekya.streams.ingest.motion import BoxFlow
from ekya.streams.ingest.process import SourceDiedError, SourceProcess
from ekya.system.files import write_text_atomic

SHIPPED_CARD = CARDS / "cpu_core.json"
"""Card of one core of the machine that the shipped figures were made on, to reproduce them."""

_COUNTED_CROPS = 100

TYPICAL_RESOLUTION = 32
"""Side of crops in pixels at which cards of GPUs were measured."""


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class EdgeRates:
    """Rates at which a device executes an edge model's operations.

    Attributes:
        inference_ops_per_s: on the objects of one frame; of a detector, on the frame.
        batch_inference_ops_per_s: on full batches.
        training_ops_per_s: SGD.
        training_step_s: fixed cost of a step of SGD beside its operations, including its part of the fixed
            cost of an epoch. A head on cached features costs little else.
    """

    inference_ops_per_s: float
    batch_inference_ops_per_s: float
    training_ops_per_s: float
    training_step_s: float


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class CostCard:
    """Rates at which a device executes operations, at the batch sizes that Ekya uses.

    Attributes:
        device: display name.
        inference_ops_per_s, batch_inference_ops_per_s, training_ops_per_s, training_step_s: of the edge
            model, as in ``EdgeRates``.
        golden_ops_per_s: of a golden model that classifies.
        detector_ops_per_s: of a detector, both as a proposer and as a golden model.
        planning_us: virtual time that one plan costs.
        others: rates of other edge models. Operations are no measure of time across architectures: a
            convolution on one channel does a tenth as many a second as one on all channels.
        gpu: of a card of a GPU server, what batches, shares and cores do there; None on a core.
        architecture: the edge model that is charged for.
    """

    device: str
    inference_ops_per_s: float
    batch_inference_ops_per_s: float
    training_ops_per_s: float
    training_step_s: float
    golden_ops_per_s: float
    detector_ops_per_s: float
    planning_us: int
    others: Mapping[str, EdgeRates] = field(default_factory=dict)
    gpu: GpuFacts | None = None
    architecture: str = DEFAULT_ARCHITECTURE

    def of(self, architecture: str) -> "CostCard":
        """Returns the card that charges for this edge model; at the default rates if none were measured."""
        rates = self.others.get(architecture)
        return replace(self, architecture=architecture, **asdict(rates) if rates else {})

    def forward_gpu_s(self, crops: int, resolution: int) -> float:
        """Returns the GPU-seconds to pass crops, or frames, of this side in pixels in full batches."""
        return crops * self._forward(resolution) / self.batch_inference_ops_per_s

    def _forward(self, resolution: int) -> int:
        return forward_operations(resolution, architecture=self.architecture)

    def family_costs(self, configs: Iterable[RetrainConfig], side: int) -> tuple[FamilyCost, ...]:
        """Returns the training cost of every family of Γ, including exemplars and validation.

        It is per crop, or per frame for a detector.
        """
        return tuple(self._family_cost(family, side) for family in sorted({family_of(c) for c in configs}))

    def _family_cost(self, family: Family, side: int) -> FamilyCost:
        prepare_gpu_s, epoch_gpu_s = self.retraining_gpu_s(_usual_cost(family, side, self.architecture))
        return FamilyCost(family, prepare_gpu_s / _COUNTED_CROPS, epoch_gpu_s / _COUNTED_CROPS)

    def frame_gpu_s(self, objects: float, resolution: int, proposer_operations: int = 0) -> float:
        """Returns the GPU-seconds to analyse one frame with this number of objects.

        A detector takes the same for any number.
        """
        passes = objects if task_of(self.architecture) is Task.CLASSIFY else 1.0
        passing = passes * self._forward(resolution) / self.inference_ops_per_s if passes else 0.0
        return passing + self.proposing_gpu_s(proposer_operations)

    def planned_frame_gpu_s(self, objects: float, resolution: int, proposer_operations: int = 0) -> float:
        """Returns ``frame_gpu_s`` with its part of a pass, whose batch fills as more cameras wait."""
        part_of_pass = 0.0 if self.gpu is None else self.gpu.pass_s / MOST_IMAGES
        return self.frame_gpu_s(objects, resolution, proposer_operations) + part_of_pass

    def as_first_believed(self) -> "CostCard":
        """Returns this card with the rates that the first run took wall times for.

        Raises:
            ValueError: no such run was made with this card.
        """
        first = None if self.gpu is None else self.gpu.first
        if first is None:
            raise ValueError(f"{self.device}: this card tells of no first run")
        passing = self._forward(TYPICAL_RESOLUTION)
        family = Family(trainable_blocks=0, head_width=0, batch_size=16)
        preparing = _usual_cost(family, TYPICAL_RESOLUTION, self.architecture).preparation
        return replace(
            self,
            inference_ops_per_s=TYPICAL_OBJECTS * passing / first.frame_s,
            batch_inference_ops_per_s=preparing / _COUNTED_CROPS / first.prepare_s,
            golden_ops_per_s=CLASSIFIERS[first.golden].operations / first.label_s,
            gpu=None,
        )

    def proposing_gpu_s(self, operations: int) -> float:
        """Returns the GPU-seconds to find the objects of one frame, before they are classified."""
        return operations / self.detector_ops_per_s

    def following_gpu_s(self, boxes: float) -> float:
        """Returns the GPU-seconds to follow this number of boxes from one typical frame into the next."""
        return self.proposing_gpu_s(BoxFlow().count_operations(TYPICAL_FRAME, boxes))

    def retraining_gpu_s(self, cost: RetrainingCost) -> tuple[float, float]:
        """Returns the GPU-seconds of a training's preparation, and of each of its epochs."""
        epoch_s = cost.epoch / self.training_ops_per_s + cost.steps * self.training_step_s
        return cost.preparation / self.batch_inference_ops_per_s, epoch_s

    def labelling_gpu_s(self, operations: int, detector: bool) -> float:
        """Returns the GPU-seconds of the golden model, which is a detector or a classifier."""
        return operations / (self.detector_ops_per_s if detector else self.golden_ops_per_s)

    def save(self, path: Path) -> None:
        """Writes the card as JSON."""
        values = asdict(self)
        del values["architecture"]  # the fleet chooses the model, not the card
        if self.gpu is None:
            del values["gpu"]
        write_text_atomic(path, json.dumps(values, indent=2) + "\n")


def _usual_cost(family: Family, side: int, architecture: str) -> RetrainingCost:
    """Returns the counted cost of a training on ``_COUNTED_CROPS`` crops, with exemplars and validation."""
    config = RetrainConfig(1, family.batch_size, family.head_width, family.trainable_blocks, 1.0)
    validation = round(_COUNTED_CROPS * VALIDATION_FRACTION / (1 - VALIDATION_FRACTION))
    trained = round(_COUNTED_CROPS * (1 + REPLAY_RATIO))
    copies = (VERSIONS[task_of(architecture)] - 1) * _COUNTED_CROPS
    crops = TrainingCrops(trained + copies + validation, trained, validation)
    return training_cost(config, crops, side, architecture)


def price_by(cost: FamilyCost, side: int, architecture: str) -> Price:
    """Returns the price of a family's trainings on a machine where its usual cost was measured."""
    usual = _usual_cost(cost.family, side, architecture)
    prepare_s = cost.prepare_gpu_s * _COUNTED_CROPS / usual.preparation
    epoch_s = cost.epoch_gpu_s * _COUNTED_CROPS / usual.epoch
    return lambda counted: (prepare_s * counted.preparation, epoch_s * counted.epoch)


def load_card(card: Path | None = None) -> CostCard:
    """Reads a cost card, by default the shipped one of a core.

    Args:
        card: a file, or the name of a shipped card.

    Raises:
        UserError: there is no such card, or the file is none.
    """
    path = _find_card(SHIPPED_CARD if card is None else card)
    try:
        return _CARD.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        wrong = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    except OSError as error:
        wrong = str(error)
    raise UserError(
        f"{path}: is not a cost card ({wrong}); make one with `ekya calibrate`, or name one "
        f"of {', '.join(shipped_cards())}."
    )


_CARD = TypeAdapter(CostCard)


def _find_card(card: Path) -> Path:
    shipped = shipped_cards()
    if card.exists() or str(card) not in shipped:
        return card
    return shipped[str(card)]


def card_costs(fleet: FleetConfig, card: CostCard) -> HostCosts:
    """Returns the costs of the fleet's work by a cost card."""
    label_gpu_s = _label_gpu_s(fleet, card)
    golden, following = {}, {}
    if fleet.offers_golden:
        golden[GOLDEN_RESOLUTION] = label_gpu_s
        following[GOLDEN_RESOLUTION] = card.following_gpu_s(TYPICAL_OBJECTS)
    finding: int | None = None  # one detector is opened for all streams

    def costs(stream: StreamConfig) -> StreamCosts:
        nonlocal finding
        operations = 0
        if not stream.source.gives_truth and fleet.golden.model != FILE:
            if finding is None:
                finding = proposer_for(fleet, stream).operations(TYPICAL_FRAME)
            operations = finding
        fps, length_s = _rate_and_length(stream)
        return StreamCosts(
            fps,
            {
                resolution: card.planned_frame_gpu_s(TYPICAL_OBJECTS, resolution, operations)
                for resolution in resolutions_to_measure(fleet)
            }
            | golden,
            card.proposing_gpu_s(operations),
            per_object=fleet.edge.task is Task.CLASSIFY,
            following_gpu_s=following,
            length_s=length_s,
        )

    frames = {stream.id: costs(stream) for stream in fleet.streams}
    families = card.family_costs(fleet.retrain_configs(), crop_side(fleet))
    if card.gpu is None:
        return HostCosts(frames, label_gpu_s, families, cores=1.0)
    part_s = card.gpu.host_part_s(sum(of.fps for of in frames.values()), gpus_of(fleet))
    return HostCosts(frames, label_gpu_s, families, card.gpu.cores, host_part_s=part_s)


def gpus_of(fleet: FleetConfig) -> int:
    """Returns the number of GPUs of a fleet; a part of one counts."""
    return math.ceil(fleet.capacity_milli / FULL_GPU_MILLI)


def fitted_by_card(
    fleet: FleetConfig,
    machine: MachineSize = ANY_MACHINE,
    *,
    overload: bool = False,
    card: CostCard | None = None,
) -> tuple[FleetConfig, tuple[str, ...]]:
    """Fits the fleet's sizes to a machine with the costs of ``card``, by default the shipped cost card.

    Raises:
        UserError: see ``fitted``.
    """
    costs = card_costs(fleet, (card or load_card()).of(fleet.edge.model))
    return fit_fleet(fleet, costs, machine, overload=overload)


def _rate_and_length(stream: StreamConfig) -> tuple[float, float | None]:
    """Returns frames a second and seconds of run time, None if unknown; the run reports a broken file."""
    known: float | None = getattr(stream.source, "fps", None)
    fps, length_s = known or ASSUMED_FPS, None
    if known is None and stream.source.gives_truth:
        # No decoder is opened, which only a process of its own survives.
        fps = stream.source.open(()).fps
    elif known is None and not stream.source.live:
        with suppress(SourceDiedError), SourceProcess(stream.source, ()) as source:
            fps, length_s = source.wait_open(), source.length_s
    return fps * stream.play.speed, None if length_s is None else stream.play.length_of(length_s)


def _label_gpu_s(fleet: FleetConfig, card: CostCard) -> float:
    """Returns the cost per object, or per frame for models that detect.

    A golden detector labels all objects of a frame in one pass.
    """
    if fleet.golden.model == FILE:
        return 0.0
    if detector_of(fleet.golden) is not None:
        operations = open_detector_of(fleet.golden, GOLDEN_SCORE).operations_per_frame(TYPICAL_FRAME)
        labelled = TYPICAL_OBJECTS if fleet.edge.task is Task.CLASSIFY else 1.0
        return card.labelling_gpu_s(operations, detector=True) / labelled
    return card.labelling_gpu_s(CLASSIFIERS[fleet.golden.model].operations, detector=False)
