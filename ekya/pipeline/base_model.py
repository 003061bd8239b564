"""The model that every stream of a fleet starts from, and how a detector relates to its teacher."""

from collections.abc import Iterator
from pathlib import Path

from ekya.config.fleet_file import FleetConfig
from ekya.config.shipped import (
    DETECTOR_BASE,
    is_shipped,
    shipped_detector,
    shipped_path,
    shipped_root,
)
from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.checkpoints import from_torchvision, is_edge_model, load_model
from ekya.models.edge.detection.weights import is_same_network, open_detector_weights
from ekya.models.edge.model import EdgeModel, adapt, build_edge_model
from ekya.models.golden.checksum import sha256_of, verified
from ekya.models.golden.class_map import COCO_MAP
from ekya.models.golden.spec import detector_of
from ekya.models.weights import read_state
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.trained_card import describe_base
from ekya.streams.synthetic import CitySpec


def open_student(fleet: FleetConfig, classes: tuple[str, ...]) -> EdgeModel:
    """Opens the detector that every stream starts with; it finds these classes.

    Raises:
        UserError: no weights are named, they cannot be read, do not match their model card, are of another
            network, or do not know one of the classes.
    """
    path, wanted = weights_of(fleet), fleet.edge.model
    shipped = shipped_path(COCO_MAP)
    if fleet.golden.class_map is None:
        return open_detector_weights(path, wanted, classes, shipped)
    try:
        return open_detector_weights(path, wanted, classes, fleet.golden.class_map)
    except UserError:
        # The map may have been written for a golden model with classes of its own.
        return open_detector_weights(path, wanted, classes, shipped)


def weights_of(fleet: FleetConfig) -> Path:
    """Returns the file of weights that a fleet of detectors starts with, after verifying its checksum.

    Raises:
        UserError: none is named and none is shipped, or it does not match its model card.
    """
    if fleet.edge.weights is not None:
        return verified(fleet.edge.weights)
    if (shipped_root() / DETECTOR_BASE).is_file():
        return verified(shipped_detector())
    raise UserError(
        f"key 'edge.weights': a {fleet.edge.model} starts from trained weights and none are named; name its "
        "published weights there, or with --student FILE"
    )


def detector_outputs(fleet: FleetConfig) -> tuple[str, ...]:
    """Returns the names of all classes that the detector knows."""
    return open_student(fleet, ()).classes


def teacher_warnings(fleet: FleetConfig) -> Iterator[str]:
    """Yields warnings: the student starts from a shipped base, or is the network that teaches it.

    Raises:
        UserError: as ``open_student``.
    """
    if fleet.edge.task is not Task.DETECT:
        rendered = all(isinstance(stream.source, CitySpec) for stream in fleet.streams)
        if not rendered and fleet.edge.weights is not None and is_shipped(fleet.edge.weights):
            yield describe_base(fleet.edge)
        return
    rendered = all(stream.source.gives_truth for stream in fleet.streams)
    if fleet.edge.weights is None and not rendered:
        yield (
            "edge.weights: none are named, and the shipped base knows rendered frames only: it finds next to "
            "nothing before its first retraining; name COCO weights there, or with --student FILE"
        )
    if detector_of(fleet.golden) is None:
        return
    golden = fleet.golden.weights
    if golden is None or not golden.is_file():
        return
    student = open_student(fleet, ())
    if sha256_of(weights_of(fleet)) == sha256_of(golden) or is_same_network(student, golden):
        yield (
            f"golden.model: {golden.name} is the network that edge.weights starts with, so it can teach "
            "nothing new; name a better detector"
        )


def base_model(fleet: FleetConfig, seed: int) -> EdgeModel:
    """Builds or loads the model that every stream starts from.

    It covers those of the fleet's classes that its weights were trained on; the others are learnt when they
    appear. ImageNet weights have no head, so the model gets a fresh head for all classes. A detector must
    know all classes.

    Raises:
        UserError: the weights cannot be read, do not match their model card, or belong to another
            architecture; see also ``open_student``.
    """
    if fleet.edge.task is Task.DETECT:
        return open_student(fleet, fleet_classes(fleet))
    classes, path, wanted = fleet_classes(fleet), fleet.edge.weights, fleet.edge.model
    if path is None:
        return build_edge_model(classes, 0, seed, wanted).eval()
    verified(path)
    if not is_edge_model(path):
        return from_torchvision(read_state(path), wanted, classes, seed, path)
    model = load_model(path)
    if model.architecture != wanted:
        raise UserError(
            f"{path}: is a {model.architecture}, and the key 'edge.model' asks for a {wanted}; change the "
            "key, or give weights of that model."
        )
    known = tuple(name for name in model.classes if name in classes)
    return adapt(model, known or classes, model.head_width, seed).eval()
