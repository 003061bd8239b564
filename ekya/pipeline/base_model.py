"""The base model: the model that every stream of a fleet starts from."""

from ekya.config.fleet_file import FleetConfig
from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.checkpoints import from_torchvision, is_edge_model, load_model
from ekya.models.edge.model import EdgeModel, adapt, build_edge_model
from ekya.models.golden.checksum import verified
from ekya.models.weights import read_state
from ekya.pipeline.default_student import open_student
from ekya.pipeline.discover_classes import fleet_classes


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
