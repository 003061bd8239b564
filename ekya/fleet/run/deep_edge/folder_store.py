"""Data store of labelled pictures in folders, described by a YAML file of stores."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ekya.config.errors import describe
from ekya.config.files import read_mapping
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.names import JobName, NodeName, SiteName
from ekya.fleet.policy.waiting import Linear
from ekya.fleet.run.deep_edge.new_pictures import Began, Picture, pictures
from ekya.fleet.run.deep_edge.store import Trigger
from ekya.fleet.run.training.protocol import Trained, TrainingTask
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.models.edge.checkpoints import load_model, to_bytes
from ekya.models.edge.cuts import DEFAULT_ARCHITECTURE
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.edge.predictor import accuracy
from ekya.models.training.labelled import LabelledCrops, concatenate, split_by_track_and_time
from ekya.streams.datasets.image_folder import class_folders, picture_names
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.pictures import UnreadableError, read_picture
from ekya.system.files import write_bytes_atomic

_LOG = logging.getLogger(__name__)

_EXAMPLE = "stores: {cam-1: {samples: pictures, out: cam-1.safetensors}}"


class TriggerSpec(BaseModel):
    """Condition under which a store triggers an update.

    Attributes:
        new_samples: pictures added since the last update began.
        accuracy: the update starts only if the model's accuracy on the newest ``new_samples`` is below this;
            where left out, at any accuracy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    new_samples: int = Field(ge=1)
    accuracy: float | None = Field(default=None, gt=0, le=1)


class StoreSpec(BaseModel):
    """Description of a store.

    Attributes:
        samples: a folder with a subfolder of pictures per class; or one such folder per node.
        out: file of the weights; the next update begins with them.
        start: model of the first update; fresh weights of ``model`` where left out.
        model: architecture.
        classes: of the model; where left out those of ``start``, or all that have a folder.
        side: of a crop, in pixels.
        trainable_blocks: of the model, counted from its end.
        epochs: upper bound.
        batch_size: used where the solver sets none.
        trigger: condition of automatic updates; where left out, updates run only on request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    samples: Path | dict[str, Path]
    out: Path
    start: Path | None = None
    model: str = DEFAULT_ARCHITECTURE
    classes: tuple[str, ...] = ()
    side: int = Field(default=32, ge=8, le=512)
    trainable_blocks: int = Field(default=1, ge=0, le=64)
    epochs: int = Field(default=20, ge=1)
    batch_size: int = Field(default=16, ge=2)
    trigger: TriggerSpec | None = None


class _StoresFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    stores: dict[str, StoreSpec] = Field(min_length=1)


def read_stores(path: Path) -> dict[str, "FolderStore"]:
    """Reads a file of stores and returns the stores by name. Relative paths start at the file's folder.

    Raises:
        UserError: the file is missing or invalid, or names something that does not exist.
    """
    raw = read_mapping(path)
    try:
        described = _StoresFile.model_validate(raw)
    except ValidationError as error:
        words = describe(error, raw, _StoresFile)
        raise UserError(f"{path}: {words}; a file of stores looks like {_EXAMPLE}") from None
    return {
        name: _opened(f"{path}: stores.{name}", path.parent, name, spec)
        for name, spec in described.stores.items()
    }


def _opened(where: str, folder: Path, name: str, spec: StoreSpec) -> "FolderStore":
    samples = spec.samples if isinstance(spec.samples, dict) else {"": spec.samples}
    roots = {NodeName(node): folder / root.expanduser() for node, root in samples.items()}
    for node, root in roots.items():
        if not root.is_dir():
            key = f"samples.{node}" if node else "samples"
            raise UserError(f"{where}.{key}: there is no folder {root}; correct the path")
    out = folder / spec.out.expanduser()
    if not out.parent.is_dir():
        raise UserError(f"{where}.out: there is no folder {out.parent}; make it, or name another file")
    if spec.model not in EDGE_MODELS:
        raise UserError(f"{where}.model: there is no {spec.model}; use one of {', '.join(EDGE_MODELS)}")
    start = None if spec.start is None else folder / spec.start.expanduser()
    model = _first_model(where, spec, start, roots)
    began = None if spec.trigger is None else Began(out.with_name(f"{out.name}.began.json"))
    return FolderStore(JobName(name), spec, roots, out, model, began)


def _first_model(
    where: str, spec: StoreSpec, start: Path | None, roots: Mapping[NodeName, Path]
) -> EdgeModel:
    if start is not None:
        model = load_model(start)
        if "model" in spec.model_fields_set and spec.model != model.architecture:
            raise UserError(f"{where}.model: {start} is a {model.architecture}; leave the key out")
        return model
    classes = spec.classes or tuple(sorted({name for root in roots.values() for name in class_folders(root)}))
    if len(classes) < 2:
        raise UserError(f"{where}.samples: there are no folders of two classes or more; name them as classes")
    return build_edge_model(classes, 0, 0, spec.model)


@dataclass(frozen=True, slots=True, eq=False)
class FolderStore:
    """A ``DataStore`` over folders of pictures.

    Attributes:
        name: of its updates.
        spec: description of the store.
        roots: folders by node; node ``""`` stands for the parameter server's node.
        out: file of the weights.
        model: of the first update.
        last_began: pictures of the last update; None where the store has no trigger.
    """

    name: JobName
    spec: StoreSpec
    roots: Mapping[NodeName, Path]
    out: Path
    model: EdgeModel
    last_began: Began | None

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of the model."""
        return self.spec.classes or self.model.classes

    @property
    def trigger(self) -> Trigger | None:
        """Condition of automatic updates; None: updates run only on request."""
        spec = self.spec.trigger
        return None if spec is None else Trigger(spec.new_samples, spec.accuracy)

    def new_samples(self) -> int:
        """Returns the number of pictures since the last update began; all without an update or a trigger.

        Raises:
            UserError: a folder cannot be read.
        """
        return len(self._new())

    def accuracy(self, newest: int) -> float:
        """Returns the accuracy of the last update's weights on this number of the newest pictures.

        Raises:
            UserError: none of these can be read, or the weights are damaged.
        """
        model = self._serving()
        seen = self._new()[-newest:]
        crops = self._crops([(self.roots[one.node], one.label, one.file) for one in seen], model.classes, 0)
        if not len(crops):
            raise UserError(
                f"{self.name}: none of its newest {newest} pictures can be read; replace damaged ones"
            )
        return accuracy(model, crops)

    def job(self) -> TrainJob:
        """Returns the update as a job, sized by the pictures in the folders now less a fifth for validation.

        Raises:
            UserError: there are no pictures.
        """
        counts = {node: len(picture_names(root, self.classes)) for node, root in self.roots.items()}
        if not sum(counts.values()):
            raise UserError(f"{self.name}: no pictures of {', '.join(self.classes)} in its folders; add some")
        # Shards are dealt in proportion, so an estimate of the training part is enough.
        chunks = {
            SiteName(node or "edge"): max(1, round(0.8 * count)) for node, count in counts.items() if count
        }
        return TrainJob(
            self.name,
            0,
            self.spec.epochs,
            Linear(1.0, 0.0),
            chunks,
            worker={"trains": 1.0},
            parameter_server={"serves": 1.0},
        )

    def task(self, assignment: Assignment) -> TrainingTask:
        """Reads the pictures into a task that starts from the last update's weights, or from the first model.

        Raises:
            UserError: too few of them can be read, or the last weights are damaged.
        """
        model = self._serving()
        if self.last_began is not None:
            self.last_began.reads(pictures(self.roots, self.classes))
        home = assignment.parameter_server or assignment.parts[0].node
        training, validation = dict[NodeName, LabelledCrops](), []
        tracks = 0
        for node, root in self.roots.items():
            files = [(root, label, file) for file, label in picture_names(root, self.classes)]
            crops = self._crops(files, self.classes, tracks)
            tracks += len(crops)
            own, held = split_by_track_and_time(crops)
            training[node or home] = own
            validation.append(held)
        held_out = concatenate(validation)
        if not len(held_out) or not any(len(own) for own in training.values()):
            raise UserError(
                f"{self.name}: its {tracks} pictures are too few to train and to validate; add some"
            )
        spec = self.spec
        config = RetrainConfig(spec.epochs, spec.batch_size, model.head_width, spec.trainable_blocks, 1.0)
        return TrainingTask(
            self.name, config, to_bytes(model), self.classes, training, held_out, home, mode=assignment.mode
        )

    def began(self) -> None:
        """Marks the pictures of the last ``task`` as no longer new."""
        if self.last_began is not None:
            try:
                self.last_began.begins()
            except UserError as error:
                _LOG.warning(
                    "%s: its update is under way, which the next manager will not know: %s", self.name, error
                )

    def update(self, trained: Trained) -> None:
        """Writes the weights.

        Raises:
            UserError: they cannot be written.
        """
        write_bytes_atomic(self.out, trained.weights)
        _LOG.info(
            "%s: %.1f%% right on held-out pictures, in %s",
            self.name,
            100 * trained.validation_accuracy,
            self.out,
        )

    def failed(self, reason: str) -> None:
        """Logs the failure; the previous weights stay."""
        _LOG.warning("%s: no update this time: %s", self.name, reason)

    def _serving(self) -> EdgeModel:
        return load_model(self.out) if self.out.exists() else self.model

    def _new(self) -> list[Picture]:
        there = pictures(self.roots, self.classes)
        return sorted(there) if self.last_began is None else self.last_began.since(there)

    def _crops(
        self, files: Iterable[tuple[Path, str, str]], classes: tuple[str, ...], first: int
    ) -> LabelledCrops:
        """Makes each readable picture (root, label, file) one object, in this order.

        The label is -1 for a class that is not listed. Tracks are numbered from ``first``.
        """
        side, labels_of = self.spec.side, {name: index for index, name in enumerate(classes)}
        crops, labels, damaged = [], [], list[Path]()
        for root, label, file in files:
            try:
                image = read_picture(root / label / file)
            except UnreadableError:
                damaged.append(root / label / file)
                continue
            height, width = image.shape[:2]
            crops.append(crop_objects(image, np.array([[0, 0, width, height]], np.float32), side)[0])
            labels.append(labels_of.get(label, -1))
        if damaged:
            _LOG.warning(
                "%s: %d pictures cannot be read and are left out, as %s", self.name, len(damaged), damaged[0]
            )
        order = np.arange(len(crops), dtype=np.int64)
        taken = np.array(crops, np.uint8).reshape(-1, side, side, 3)
        return LabelledCrops(taken, np.array(labels, np.int64), first + order, order)
