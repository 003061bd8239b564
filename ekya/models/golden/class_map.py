"""Names of COCO's classes, and the map of a golden model's classes to the fleet's, which is checked."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ekya.config.shipped import shipped_root
from ekya.core.errors import UserError
from ekya.core.objects import BACKGROUND
from ekya.system.yaml_file import read_mapping

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


def class_of_each(
    classes: tuple[str, ...], names: tuple[str, ...], file: Path | None, model: str
) -> NDArray[np.int64]:
    """Returns the fleet's class of each class of a golden model.

    Args:
        classes: the fleet's; no class of a model counts for ``background``.
        names: the golden model's.
        file: YAML file that maps a class of the fleet to a list of the model's; None if there is none. A
            class that the file does not name is mapped to the model's class of the same name.
        model: the golden model's name, for errors.

    Returns:
        (names,) int64, index into ``classes``; -1 for what is none of the fleet's classes.

    Raises:
        UserError: the file is no such map, one of the fleet's classes has no members, a member is no class
            of the model, or counts for two of the fleet's classes.
    """
    listed = read_mapping(file) if file is not None else {}
    # A map that the user has not named is not to blame.
    where = "" if file is None or file.is_relative_to(shipped_root()) else f"{file}: "
    place = {name: row for row, name in enumerate(names)}
    class_of = np.full(len(names), -1, np.int64)
    for index, name in enumerate(classes):
        if name == BACKGROUND:
            continue
        members = listed.get(name, [name] if name in place else [])
        if not isinstance(members, list) or not members:
            raise UserError(
                f"{where}key 'classes': {model} knows no '{name}', and no class map says which of its "
                f"classes count for it; list some under golden.class_map, or leave '{name}' out of the fleet "
                f"({model} distinguishes {_some(names)})."
            )
        for member in members:
            if member not in place:
                raise UserError(f"{where}key '{name}': '{member}' is no class of {model}; correct it.")
            if class_of[place[member]] not in (-1, index):
                raise UserError(
                    f"{where}key '{name}': '{member}' counts for '{classes[class_of[place[member]]]}' "
                    "already; leave one of the two out of the fleet's classes, or list it once under "
                    "golden.class_map."
                )
            class_of[place[member]] = index
    return class_of


def _some(names: tuple[str, ...], count: int = 12) -> str:
    shown = ", ".join(names[:count])
    return shown if len(names) <= count else f"{shown} and {len(names) - count} more"
