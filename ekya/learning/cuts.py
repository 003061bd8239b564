"""Which classifiers are edge models, and where each is cut into blocks that train or stay frozen.

No network is built here: what reads a fleet file needs the names alone, and not torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

DEFAULT_ARCHITECTURE = "resnet18"
"""What a stream's model is made of unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A batch normalisation: what it adds to a variance, and how far a batch moves its statistics."""

    eps: float
    momentum: float


@dataclass(frozen=True, slots=True)
class Cut:
    """How a classifier of torchvision becomes a trunk.

    Attributes:
        blocks: of each block's name, the paths of torchvision's modules in it, in their order.
        features: channels of what the last block gives.
        head: torchvision's name of what comes after, which a head of ours replaces.
        options: of the builder.
        norm: of its batch normalisations, where they are not to be torchvision's.
        full_size: path of a convolution that halves the picture in torchvision and keeps its size here.
            ImageNet's pictures have 224 pixels, a crop of a street 32: halved five times, one is left.
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
        # Torchvision's moves a hundredth of the way with each batch: a window has fewer batches than that.
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
        # Stages left out by chance would make two trainings with one seed differ.
        {"stochastic_depth_prob": 0.0},
        full_size="features.0.0",
    ),
    # The larger model of the paper's §2.3; too slow for a stream. Its stages begin as what they get, so
    # that fresh weights of such depth can be trained at all.
    "resnet101": Cut(_RESNET, 2048, "fc", {"zero_init_residual": True}),
}
"""Which of torchvision's classifiers are edge models. Names of blocks are those of the papers' tables."""


def block_names(architecture: str) -> tuple[str, ...]:
    """The blocks of an architecture, from the input on."""
    return tuple(CUTS[architecture].blocks)


def places_of_torchvisions_modules(architecture: str) -> Mapping[str, str]:
    """For each of torchvision's modules that a trunk is cut from, where it stands among the blocks.

    Both with a dot behind, as they begin the names of weights: ``features.3.`` stands at ``2.1.``.
    """
    places = {}
    for place, paths in enumerate(CUTS[architecture].blocks.values()):
        for inner, path in enumerate(paths):
            places[f"{path}."] = f"{place}.{inner}." if len(paths) > 1 else f"{place}."
    return places
