"""Names and numbers of COCO's classes, as torchvision has them."""

from pathlib import Path

import numpy as np

COCO_MAP = "golden_models/coco_to_fleet.yaml"
"""Shipped class map for models that know COCO's classes."""

_SAME_LIST = 0.75
_NOT_CLASSES = frozenset({"__background__", "N/A"})


def _lines(file: Path) -> tuple[str, ...]:
    return tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())


COCO_CATEGORIES = _lines(Path(__file__).with_name("coco_categories.txt"))
"""Names of the 91 labels of a torchvision detector; some are no class."""


def coco_names() -> tuple[str, ...]:
    """Returns the 80 classes in COCO's order."""
    return tuple(name for name in COCO_CATEGORIES if name not in _NOT_CLASSES)


CLASS_OF_CATEGORY = np.array(
    [coco_names().index(name) if name not in _NOT_CLASSES else -1 for name in COCO_CATEGORIES], np.int64
)
"""(91,) index among ``coco_names`` of each of COCO's category numbers; -1 where there is none."""


def listed_names(file: Path) -> tuple[str, ...]:
    """Returns the classes in a file, one per line, spelt as the other detectors spell them.

    Some lists say motorbike where torchvision says motorcycle. A list that agrees with COCO's in most places
    is replaced by COCO's; any other is of another training, and is not changed.
    """
    standard, own = coco_names(), _lines(file)
    same = sum(a == b for a, b in zip(own, standard, strict=False))
    return standard if len(own) == len(standard) and same >= _SAME_LIST * len(standard) else own
