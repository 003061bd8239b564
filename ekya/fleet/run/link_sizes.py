"""What a retraining of a fleet's streams sends over links."""

from ekya.config import FleetConfig
from ekya.fleet.policy.offers import Sizes
from ekya.learning.checkpoints import to_bytes
from ekya.setup import base_model, crop_side, fleet_classes


def sizes_of(fleet: FleetConfig, seed: int) -> Sizes:
    """Of the fleet's crops and edge models."""
    side, model = crop_side(fleet), base_model(fleet, seed)
    blocks = [4e-6 * sum(weights.numel() for weights in block.parameters()) for block in model.blocks]
    return Sizes(
        crop_mb=side * side * 3 / 1e6,
        model_mb=len(to_bytes(model)) / 1e6,
        blocks_mb=tuple(reversed(blocks)),
        features=model.features,
        classes=len(fleet_classes(fleet)),
    )
