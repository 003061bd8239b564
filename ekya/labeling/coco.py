"""The names of COCO's classes, as torchvision's own weights give them."""

from torchvision.models import get_model_weights

_ANY_COCO_MODEL = "ssdlite320_mobilenet_v3_large"
_NOT_CLASSES = frozenset({"__background__", "N/A"})


def coco_categories() -> tuple[str, ...]:
    """The 91 places of a torchvision detector's answer; some are no class."""
    weights = get_model_weights(_ANY_COCO_MODEL)
    return tuple(str(name) for name in next(iter(weights)).meta["categories"])


def coco_names() -> tuple[str, ...]:
    """The 80 classes in COCO's order."""
    return tuple(name for name in coco_categories() if name not in _NOT_CLASSES)
