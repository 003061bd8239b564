"""Costs of a fleet's work by a cost card, and sizes fitted to them; the same on every machine."""

from ekya.config.fleet_file import FleetConfig, StreamConfig
from ekya.config.sizing import ANY_MACHINE, fitted, resolutions_to_measure
from ekya.core.host import TYPICAL_OBJECTS, HostCosts, StreamCosts
from ekya.models.golden.golden_model import GOLDEN_SCORE, open_detector_of
from ekya.models.golden.proposer import ObjectsSpec
from ekya.models.golden.registry import CLASSIFIERS, FILE
from ekya.models.golden.spec import detector_of
from ekya.pipeline.costs import CostCard, load_card
from ekya.pipeline.setup import crop_side, proposer_for
from ekya.planning.profiling.sizes import Machine
from ekya.streams.ingest.camera import ASSUMED_FPS

TYPICAL_FRAME = (360, 640, 3)
"""Height, width and channels of a frame, assumed until a camera has delivered one."""


def card_costs(fleet: FleetConfig, card: CostCard) -> HostCosts:
    """Returns the costs of the fleet's work by a cost card."""
    finding: dict[ObjectsSpec, int] = {}  # one detector is opened for all streams with the same settings

    def costs(stream: StreamConfig) -> StreamCosts:
        operations = 0
        if not stream.source.gives_truth and fleet.golden.model != FILE:
            if stream.objects not in finding:
                finding[stream.objects] = proposer_for(fleet, stream).operations(TYPICAL_FRAME)
            operations = finding[stream.objects]
        return StreamCosts(
            _said_fps(stream),
            {
                resolution: card.frame_gpu_s(TYPICAL_OBJECTS, resolution, operations)
                for resolution in resolutions_to_measure(fleet)
            },
            card.proposing_gpu_s(operations),
        )

    frames = {stream.id: costs(stream) for stream in fleet.streams}
    families = card.family_costs(fleet.retrain_configs(), crop_side(fleet))
    return HostCosts(frames, _label_gpu_s(fleet, card), families, cores=1.0)


def fitted_by_card(
    fleet: FleetConfig,
    machine: Machine = ANY_MACHINE,
    *,
    overload: bool = False,
    card: CostCard | None = None,
) -> tuple[FleetConfig, tuple[str, ...]]:
    """Fits the fleet's sizes to a machine with the costs of ``card``, by default the shipped cost card.

    Raises:
        UserError: see ``fitted``.
    """
    costs = card_costs(fleet, (card or load_card()).of(fleet.edge.model))
    return fitted(fleet, costs, machine, overload=overload)


def _said_fps(stream: StreamConfig) -> float:
    """Returns the stream's frames per second by the fleet file, or the default."""
    said: float | None = getattr(stream.source, "fps", None)
    return (said or ASSUMED_FPS) * stream.play.speed


def _label_gpu_s(fleet: FleetConfig, card: CostCard) -> float:
    """Returns the cost per object; a detector labels all objects of a frame in one pass."""
    if fleet.golden.model == FILE:
        return 0.0
    if detector_of(fleet.golden) is not None:
        operations = open_detector_of(fleet.golden, GOLDEN_SCORE).operations_per_frame(TYPICAL_FRAME)
        return card.labelling_gpu_s(operations, detector=True) / TYPICAL_OBJECTS
    return card.labelling_gpu_s(CLASSIFIERS[fleet.golden.model].operations, detector=False)
