"""What a fleet's work takes by a cost card, and sizes that fit that: the same on every machine."""

from ekya.config import FleetConfig, StreamConfig
from ekya.core.host import TYPICAL_OBJECTS, HostCosts, StreamCosts
from ekya.labeling.detectors import GOLDEN_SCORE
from ekya.labeling.golden import open_detector_of
from ekya.labeling.names import CLASSIFIER_OPERATIONS, FILE
from ekya.labeling.proposer import ObjectsSpec
from ekya.labeling.spec import detector_of
from ekya.profiling.sizes import Machine
from ekya.setup import crop_side, proposer_for
from ekya.sizing import ANY_MACHINE, fitted, resolutions_to_measure
from ekya.streams.camera import ASSUMED_FPS
from ekya.workers.costs import CostCard, load_card

TYPICAL_FRAME = (360, 640, 3)
"""Height, width and colours of a frame, until a camera has shown its own."""


def card_costs(fleet: FleetConfig, card: CostCard) -> HostCosts:
    """What the fleet's work takes by a cost card."""
    finding: dict[ObjectsSpec, int] = {}  # a detector is opened once for all streams that are alike

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
    """The fleet with sizes that fit a machine where work takes what a card says, or the shipped one.

    Raises:
        UserError: as ``fitted``.
    """
    costs = card_costs(fleet, (card or load_card()).of(fleet.edge.model))
    return fitted(fleet, costs, machine, overload=overload)


def _said_fps(stream: StreamConfig) -> float:
    """Frames a second, as far as the fleet file says."""
    said: float | None = getattr(stream.source, "fps", None)
    return (said or ASSUMED_FPS) * stream.play.speed


def _label_gpu_s(fleet: FleetConfig, card: CostCard) -> float:
    """Of one object; a detector names all objects of a frame at once."""
    if fleet.golden.model == FILE:
        return 0.0
    if detector_of(fleet.golden) is not None:
        operations = open_detector_of(fleet.golden, GOLDEN_SCORE).operations_per_frame(TYPICAL_FRAME)
        return card.labelling_gpu_s(operations, detector=True) / TYPICAL_OBJECTS
    return card.labelling_gpu_s(CLASSIFIER_OPERATIONS[fleet.golden.model], detector=False)
