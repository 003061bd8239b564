"""The names of COCO's classes, as torchvision's own weights give them."""

from pathlib import Path

from torchvision.models import get_model_weights

_ANY_COCO_MODEL = "ssdlite320_mobilenet_v3_large"
_SAME_LIST = 0.75
_NOT_CLASSES = frozenset({"__background__", "N/A"})


def coco_categories() -> tuple[str, ...]:
    """The 91 places of a torchvision detector's answer; some are no class."""
    weights = get_model_weights(_ANY_COCO_MODEL)
    return tuple(str(name) for name in next(iter(weights)).meta["categories"])


def coco_names() -> tuple[str, ...]:
    """The 80 classes in COCO's order."""
    return tuple(name for name in coco_categories() if name not in _NOT_CLASSES)


def listed_names(file: Path) -> tuple[str, ...]:
    """The classes in a network's order, one a line, spelt as every other detector here spells them.

    Some lists say motorbike where torchvision says motorcycle. A list that agrees with COCO's in
    most places is COCO's; any other is another training's, and stays as it is.
    """
    standard = coco_names()
    own = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    same = sum(a == b for a, b in zip(own, standard, strict=False))
    return standard if len(own) == len(standard) and same >= _SAME_LIST * len(standard) else own
