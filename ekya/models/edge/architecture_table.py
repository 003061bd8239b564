"""Networks that are available as edge models, the blocks that each is cut into, and the scale of their input.

No network is built here, so that a fleet file can be read without torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from ekya.core.plug_ins import PlugInGroup, find_plug_ins, load_plug_in

DEFAULT_ARCHITECTURE = "resnet18"
"""Architecture of a stream's model unless the fleet file names another."""


class Task(StrEnum):
    """Task of an edge model."""

    CLASSIFY = "classify"
    """Names the objects in boxes that are given or proposed."""
    DETECT = "detect"
    """Finds objects in whole frames, and names them."""


@dataclass(frozen=True, slots=True)
class Norm:
    """Settings of a batch normalisation, as torch defines them."""

    eps: float
    momentum: float


@dataclass(frozen=True, slots=True)
class Cut:
    """Cuts a classifier of torchvision into the blocks of a trunk.

    Attributes:
        blocks: for each block's name, the paths of torchvision's modules in it, in order.
        features: channels of the last block's output.
        head: torchvision's name of the classifier after it, which Ekya's head replaces.
        options: keyword arguments of the builder.
        norm: settings of its batch normalisations, if not torchvision's.
        full_size: path of a convolution that halves the image in torchvision and keeps its size here.
            ImageNet's images have 224 pixels, a crop of a street 32: halved five times, one is left.
    """

    blocks: Mapping[str, tuple[str, ...]]
    features: int
    head: str
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    norm: Norm | None = None
    full_size: str | None = None


_RESNET = {
    "stem": ("conv1", "bn1", "relu", "maxpool"),
    "layer1": ("layer1",),
    "layer2": ("layer2",),
    "layer3": ("layer3",),
    "layer4": ("layer4",),
}

CUTS: Mapping[str, Cut] = {
    "resnet18": Cut(_RESNET, 512, "fc"),
    "mobilenet_v3_small": Cut(
        {
            "stem": ("features.0",),
            "stage1": ("features.1",),
            "stage2": ("features.2", "features.3"),
            "stage3": tuple(f"features.{place}" for place in range(4, 9)),
            "stage4": ("features.9", "features.10", "features.11"),
            "conv5": ("features.12",),
        },
        576,
        "classifier",
        # Torchvision's momentum of 0.01 is too slow: a window has fewer than a hundred batches.
        norm=Norm(eps=0.001, momentum=0.1),
        full_size="features.0.0",
    ),
    "shufflenet_v2_x1_0": Cut(
        {
            "stem": ("conv1", "maxpool"),
            "stage2": ("stage2",),
            "stage3": ("stage3",),
            "stage4": ("stage4",),
            "conv5": ("conv5",),
        },
        1024,
        "fc",
        full_size="conv1.0",
    ),
    "efficientnet_b0": Cut(
        {
            "stem": ("features.0",),
            "stage1": ("features.1",),
            "stage2": ("features.2",),
            "stage3": ("features.3",),
            "stage4": ("features.4", "features.5"),
            "stage5": ("features.6", "features.7"),
            "conv6": ("features.8",),
        },
        1280,
        "classifier",
        # Stochastic depth would make two trainings with one seed differ.
        {"stochastic_depth_prob": 0.0},
        full_size="features.0.0",
    ),
    # The larger model of the paper's §2.3; too slow for a stream. Its residual blocks start as identities,
    # since fresh weights of such depth cannot be trained otherwise.
    "resnet101": Cut(_RESNET, 2048, "fc", {"zero_init_residual": True}),
}
"""Torchvision's classifiers that are edge models. Names of blocks are those of the papers' tables."""


FASTESTDET = "fastestdet"
"""Architecture of a stream's detector unless the fleet file names another."""

DETECTORS: Mapping[str, tuple[str, ...]] = {
    FASTESTDET: ("stem", "stage2", "stage3", "stage4", "spp"),
}
"""Detectors that are edge models, and the names of their blocks; the heads follow."""

STUDENTS = find_plug_ins(PlugInGroup.STUDENTS)
"""Classifiers of other packages."""

CLASSIFIERS = (*CUTS, *(name for name in STUDENTS if name not in CUTS and name not in DETECTORS))
"""Every edge model that classifies."""

NAMES = (*CLASSIFIERS, *DETECTORS)
"""Every edge model."""


def build_student(name: str) -> tuple[Mapping[str, Any], int]:
    """Returns the blocks of another package's classifier, modules of torch, and the last one's channels.

    Raises:
        UserError: that package cannot be loaded.
    """
    made: tuple[Mapping[str, Any], int] = load_plug_in(STUDENTS[name], lambda build: build())
    return made


def task_of(architecture: str) -> Task:
    """Returns what an edge model of this architecture does."""
    return Task.DETECT if architecture in DETECTORS else Task.CLASSIFY


def block_names(architecture: str) -> tuple[str, ...]:
    """Returns the names of an architecture's blocks, from the input on."""
    if architecture in DETECTORS:
        return DETECTORS[architecture]
    return tuple(CUTS[architecture].blocks if architecture in CUTS else build_student(architecture)[0])


INPUT_MEAN = 0.45
INPUT_SCALE = 0.25
"""Pixels in [0, 1] enter a model minus the mean and divided by the scale."""
