"""Names of COCO's classes, as torchvision spells them."""

from pathlib import Path

_SAME_LIST = 0.75
_NOT_CLASSES = frozenset({"__background__", "N/A"})


COCO_CATEGORIES = (
    "__background__",
    "person",
    "bicycle",
    "car",
    "motorcycle",
    "airplane",
    "bus",
    "train",
    "truck",
    "boat",
    "traffic light",
    "fire hydrant",
    "N/A",
    "stop sign",
    "parking meter",
    "bench",
    "bird",
    "cat",
    "dog",
    "horse",
    "sheep",
    "cow",
    "elephant",
    "bear",
    "zebra",
    "giraffe",
    "N/A",
    "backpack",
    "umbrella",
    "N/A",
    "N/A",
    "handbag",
    "tie",
    "suitcase",
    "frisbee",
    "skis",
    "snowboard",
    "sports ball",
    "kite",
    "baseball bat",
    "baseball glove",
    "skateboard",
    "surfboard",
    "tennis racket",
    "bottle",
    "N/A",
    "wine glass",
    "cup",
    "fork",
    "knife",
    "spoon",
    "bowl",
    "banana",
    "apple",
    "sandwich",
    "orange",
    "broccoli",
    "carrot",
    "hot dog",
    "pizza",
    "donut",
    "cake",
    "chair",
    "couch",
    "potted plant",
    "bed",
    "N/A",
    "dining table",
    "N/A",
    "N/A",
    "toilet",
    "N/A",
    "tv",
    "laptop",
    "mouse",
    "remote",
    "keyboard",
    "cell phone",
    "microwave",
    "oven",
    "toaster",
    "sink",
    "refrigerator",
    "N/A",
    "book",
    "clock",
    "vase",
    "scissors",
    "teddy bear",
    "hair drier",
    "toothbrush",
)
"""Names of the 91 labels of a torchvision detector; some are no class."""


def coco_names() -> tuple[str, ...]:
    """Returns the 80 classes in COCO's order."""
    return tuple(name for name in COCO_CATEGORIES if name not in _NOT_CLASSES)


def listed_names(file: Path) -> tuple[str, ...]:
    """Returns the classes in a file, one per line, spelt as the other detectors spell them.

    Some lists say motorbike where torchvision says motorcycle. A list that agrees with COCO's in most places
    is replaced by COCO's; any other is of another training, and is not changed.
    """
    standard = coco_names()
    own = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    same = sum(a == b for a, b in zip(own, standard, strict=False))
    return standard if len(own) == len(standard) and same >= _SAME_LIST * len(standard) else own
