"""Data store of labelled pictures in folders, described by a YAML file of stores."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from pydantic import Field

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.fleet.described import DescribedPart, read_described
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import STORES
from ekya.fleet.run.link_sizes import sizes_with
from ekya.fleet.run.stores.memory import StoredPicture, StoreMemory, pictures
from ekya.fleet.run.training.bundle_file import TrainingBundle
from ekya.models.edge.architecture_table import DEFAULT_ARCHITECTURE
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.models.edge.checkpoints import load_model, to_bytes
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.edge.predictor import accuracy
from ekya.models.training.labelled import (
    VALIDATION_FRACTION,
    LabelledCrops,
    split_by_track_and_time,
)
from ekya.models.training.trainer import RetrainingData
from ekya.pipeline.costs import load_card
from ekya.streams.datasets.image_folder import class_folders, picture_names
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.pictures import UnreadableError, read_picture
from ekya.system.files import expand_home, write_bytes_atomic

_LOG = logging.getLogger(__name__)

_JUDGED = 100
"""Number of the newest pictures on which a model without a trigger is measured."""

_LEAST_GAIN = 0.001
"""Least gain that is expected, so that updates which have brought nothing do not end all later ones."""

_EXAMPLE = "; a file of stores looks like stores: {cam-1: {samples: pictures, out: cam-1.safetensors}}"


class TriggerSpec(DescribedPart):
    """Condition under which a store triggers an update.

    Attributes:
        new_samples: pictures added since the last update began.
        accuracy: the update starts only if the model's accuracy on the newest ``new_samples`` is below this;
            where left out, at any accuracy.
    """

    new_samples: int = Field(ge=1)
    accuracy: float | None = Field(default=None, gt=0, le=1)


class StoreSpec(DescribedPart):
    """Description of a store.

    Attributes:
        samples: a folder with a subfolder of pictures per class.
        out: file of the weights; the next update begins with them.
        start: model of the first update; fresh weights of ``model`` where left out.
        model: architecture.
        classes: of the model; where left out those of ``start``, or all that have a folder.
        side: of a crop, in pixels.
        trainable_blocks: of the model, counted from its end.
        epochs: upper bound.
        batch_size: of a step.
        trigger: condition of automatic updates; where left out, updates run only on request.
        due_s: seconds until an update is due, from the moment in which it is wanted.
        weight: of its accuracy, beside that of a stream of average weight.
    """

    samples: Path
    out: Path
    start: Path | None = None
    model: str = DEFAULT_ARCHITECTURE
    classes: tuple[str, ...] = ()
    side: int = Field(default=32, ge=8, le=512)
    trainable_blocks: int = Field(default=1, ge=0, le=64)
    epochs: int = Field(default=20, ge=1)
    batch_size: int = Field(default=16, ge=2)
    trigger: TriggerSpec | None = None
    due_s: float = Field(default=3600.0, gt=0)
    weight: float = Field(default=1.0, gt=0)


class StoresFile(DescribedPart):
    """Schema of the file of stores.

    Attributes:
        stores: by name.
    """

    stores: dict[str, StoreSpec] = Field(min_length=1)


def read_stores(path: Path) -> dict[StreamId, "FolderStore"]:
    """Reads a file of stores and returns the stores by name. Relative paths start at the file's folder.

    Raises:
        UserError: a file is missing or invalid, or names something that does not exist.
    """
    described = read_described(path, StoresFile, _EXAMPLE)
    return {
        StreamId(name): _opened(f"{path}: stores.{name}", path.parent, StreamId(name), spec)
        for name, spec in described.stores.items()
    }


def _opened(where: str, folder: Path, name: StreamId, spec: StoreSpec) -> "FolderStore":
    root = folder / expand_home(spec.samples)
    if not root.is_dir():
        raise UserError(f"{where}.samples: there is no folder {root}; correct the path")
    out = folder / expand_home(spec.out)
    if not out.parent.is_dir():
        raise UserError(f"{where}.out: there is no folder {out.parent}; make it, or name another file")
    if spec.model not in EDGE_MODELS:
        raise UserError(f"{where}.model: there is no {spec.model}; use one of {', '.join(EDGE_MODELS)}")
    start = None if spec.start is None else folder / expand_home(spec.start)
    model = _first_model(where, spec, start, root)
    config = RetrainConfig(spec.epochs, spec.batch_size, model.head_width, spec.trainable_blocks, 1.0)
    (cost,) = load_card().of(model.architecture).family_costs([config], spec.side)
    crop_gpu_s = cost.epoch_gpu_s + cost.prepare_gpu_s / spec.epochs
    memory = StoreMemory(out.with_name(f"{out.name}.updates.json"))
    return FolderStore(name, spec, root, out, model, crop_gpu_s, memory)


def _first_model(where: str, spec: StoreSpec, start: Path | None, root: Path) -> EdgeModel:
    if start is not None:
        model = load_model(start)
        if "model" in spec.model_fields_set and spec.model != model.architecture:
            raise UserError(f"{where}.model: {start} is a {model.architecture}; leave the key out")
        return model
    classes = spec.classes or tuple(sorted(class_folders(root)))
    if len(classes) < 2:
        raise UserError(f"{where}.samples: there are no folders of two classes or more; name them as classes")
    return build_edge_model(classes, 0, 0, spec.model)


@dataclass(frozen=True, slots=True, eq=False)
class FolderStore:
    """Folders of pictures, and the model that learns from them. Not thread-safe, but for ``training_bundle``.

    Attributes:
        name: of its updates.
        spec: description of the store.
        root: folder of the pictures.
        out: file of the weights.
        model: of the first update.
        crop_gpu_s: GPU-seconds of a picture in an epoch of the first update.
        memory: of former updates.
    """

    name: StreamId
    spec: StoreSpec
    root: Path
    out: Path
    model: EdgeModel
    crop_gpu_s: float
    memory: StoreMemory

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of the model."""
        return self.spec.classes or self.model.classes

    def new_samples(self) -> int:
        """Returns the number of pictures since the last update began; all where none has.

        Raises:
            UserError: a folder cannot be read.
        """
        return len(self._new())

    def measure_accuracy(self, newest: int) -> float:
        """Returns the accuracy of the last update's weights on this number of the newest pictures.

        Raises:
            UserError: none of these can be read, or the weights are damaged.
        """
        model = self._serving()
        seen = (self._new() or sorted(pictures(self.root, self.classes)))[-newest:]
        crops = self._crops([(one.label, one.file) for one in seen], model.classes)
        if not len(crops):
            raise UserError(
                f"{self.name}: none of its newest {newest} pictures can be read; replace damaged ones"
            )
        return accuracy(model, crops)

    def make_offer(self, epochs: int, weight: float, now_us: int, until_us: int) -> TrainingOffer:
        """Returns an update with the pictures in the folders now, of which about a fifth validates.

        Its gain is that of former updates on average; of the first one, half of what the model's accuracy on
        the newest pictures lacks.

        Raises:
            UserError: there are no pictures, or none can be read.
        """
        spec = self.spec
        count = len(picture_names(self.root, self.classes))
        if not count:
            raise UserError(f"{self.name}: no pictures of {', '.join(self.classes)} in its folder; add some")
        crops, gain = max(1, round((1 - VALIDATION_FRACTION) * count)), self.memory.gain
        if gain is None:
            gain = (
                1.0 - self.measure_accuracy(_JUDGED if spec.trigger is None else spec.trigger.new_samples)
            ) / 2
        config = RetrainConfig(epochs, spec.batch_size, self.model.head_width, spec.trainable_blocks, 1.0)
        sizes = sizes_with(self.model, spec.side, len(self.classes))
        return TrainingOffer(
            site=STORES,
            stream=self.name,
            config=config,
            epochs=epochs,
            gpu_s=(self.memory.crop_gpu_s or self.crop_gpu_s) * crops * epochs,
            gain=weight * max(gain, _LEAST_GAIN),
            at_home=0.0,
            now_us=now_us,
            until_us=until_us,
            crops_mb=count * sizes.crop_mb,
            model_mb=sizes.model_mb,
            back_mb=sizes.snapshot_mb(config),
            per_accuracy=weight,
        )

    def training_bundle(self, config: RetrainConfig) -> TrainingBundle:
        """Reads the pictures into a bundle that starts from the last update's weights, or the first model.

        From then on they are no longer new.

        Raises:
            UserError: too few of them can be read, or the last weights are damaged.
        """
        model, there = self._serving(), pictures(self.root, self.classes)
        files = [(label, file) for file, label in picture_names(self.root, self.classes)]
        crops = self._crops(files, self.classes)
        learnt, held_out = split_by_track_and_time(crops)
        if not len(held_out) or not len(learnt):
            raise UserError(
                f"{self.name}: its {len(crops)} pictures are too few to train and to validate; add some"
            )
        try:
            self.memory.record_begin(there)
        except UserError as error:
            _LOG.warning("%s: a later process will count its pictures as new: %s", self.name, error)
        return TrainingBundle(config, to_bytes(model), RetrainingData(learnt, held_out, self.classes))

    def has_weights(self, digest: str) -> bool:
        """Returns whether the weights of its last update have this SHA-256."""
        return self.out.is_file() and sha256(self.out.read_bytes()).hexdigest() == digest

    def store_weights(self, weights: bytes, accuracy: float) -> None:
        """Writes new weights, with their accuracy on held-out pictures.

        Raises:
            UserError: they cannot be written.
        """
        write_bytes_atomic(self.out, weights)
        _LOG.info("%s: %.1f%% right on held-out pictures, in %s", self.name, 100 * accuracy, self.out)

    def record_update(self, crop_gpu_s: float, gain: float) -> None:
        """Keeps what an update has taken, by picture and epoch, and brought."""
        try:
            self.memory.record_update(crop_gpu_s, gain)
        except UserError as error:
            _LOG.warning("%s: what an update took is not kept: %s", self.name, error)

    def _serving(self) -> EdgeModel:
        return load_model(self.out) if self.out.exists() else self.model

    def _new(self) -> list[StoredPicture]:
        return self.memory.pictures_since(pictures(self.root, self.classes))

    def _crops(self, files: Iterable[tuple[str, str]], classes: tuple[str, ...]) -> LabelledCrops:
        """Makes each readable picture (label, file) one object, in this order; -1: of a class not listed."""
        side, labels_of = self.spec.side, {name: index for index, name in enumerate(classes)}
        crops, labels, damaged = [], [], list[Path]()
        for label, file in files:
            try:
                image = read_picture(self.root / label / file)
            except UnreadableError:
                damaged.append(self.root / label / file)
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
        return LabelledCrops(taken, np.array(labels, np.int64), order, order)
