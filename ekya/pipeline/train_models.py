"""`ekya golden train` and `ekya edge train`: a classifier of crops, from the labels of a fleet's streams."""

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ekya import __version__
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_sections import StreamConfig
from ekya.core.errors import UserError
from ekya.core.objects import BACKGROUND
from ekya.core.units import US_PER_S, StreamId, seconds_to_us
from ekya.models.edge.architecture_table import CLASSIFIERS as STUDENTS
from ekya.models.edge.architecture_table import INPUT_MEAN, INPUT_SCALE, Task
from ekya.models.edge.model import adapt
from ekya.models.golden.checksum import sha256_of
from ekya.models.golden.class_map import class_of_each
from ekya.models.golden.detections import FramePlace
from ekya.models.golden.golden_model import GOLDEN_SCORE, label_file_of
from ekya.models.golden.label_file import read_labels
from ekya.models.golden.spec import CLASSIFIERS, FILE, imported
from ekya.models.supervised.crop_store import (
    CropStore,
    LabelledPicture,
    Split,
    cut_stream,
    most_alike,
    open_crops,
)
from ekya.models.supervised.network import TrainableNetwork
from ekya.models.supervised.recipe import choose_recipe
from ekya.models.supervised.training import CHECKPOINT, Training, TrainingProgress, count_confusions
from ekya.pipeline.base_model import base_model
from ekya.pipeline.discover_classes import fleet_classes, with_classes
from ekya.pipeline.trained_card import TrainedFacts, write_trained_card
from ekya.streams.ingest.process import SourceProcess
from ekya.streams.sources import DATASETS
from ekya.streams.synthetic import CitySpec
from ekya.system.files import LOCK, hold_folder, user_errors, write_bytes_atomic, write_text_atomic

_LOG = logging.getLogger(__name__)
_SEED = 0
_TRACK_US = 5 * US_PER_S
"""Labels of a file have no tracks: what is seen within this time may be the same object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOrder:
    """What is to be trained.

    Attributes:
        kind: ``golden`` or ``edge``.
        model: architecture.
        weights: to begin with; None for those that the model has, or fresh ones.
        holdout: streams that measure and never train; empty chooses.
        out: file of weights to write.
        epochs: at most; None chooses by the amount of data.
        command: that asks for it.
    """

    kind: str
    model: str
    weights: Path | None
    holdout: tuple[StreamId, ...]
    out: Path
    epochs: int | None
    command: str

    @property
    def partial(self) -> Path:
        """Folder of crops and checkpoint until the training is over."""
        return self.out.with_name(f"{self.out.name}.partial")


def train_model(fleet: FleetConfig, order: TrainingOrder, progress: TrainingProgress) -> TrainedFacts:
    """Trains a model, or goes on with its training, and writes its weights and its card.

    Args:
        fleet: whose streams' labels it learns from.
        order: what is to be trained.
        progress: receives the progress; what it raises stops the training, which can be resumed.

    Raises:
        UserError: the fleet has no labels, the weights do not fit, another training is in the folder, and the
            like.
    """
    played = tuple(stream.id for stream in fleet.streams)
    held_out = order.holdout or (played if fleet.pretraining else choose_held_out(played))
    fleet = _with_labels(fleet.with_pretraining())
    classes = tuple(name for name in fleet_classes(fleet) if name != BACKGROUND)
    _require_streams(fleet, held_out)
    network = _make_network(fleet, order, classes)
    folder, device = order.partial, "cuda" if torch.cuda.is_available() else "cpu"
    with user_errors(folder):
        folder.mkdir(exist_ok=True)
    with hold_folder(folder), _deterministic(_agree_on_plan(fleet, order, network, held_out, device)):
        store = _cut_crops(fleet, classes, network.side, folder, progress)
        split = store.split(held_out)
        _require_crops(store, split, held_out)
        shown = np.unique(store.classes[split.training])
        if unseen := [name for number, name in enumerate(classes) if number not in shown]:
            _LOG.warning("no crop to learn from shows %s: it will never be answered", ", ".join(unseen))
        recipe = choose_recipe(len(split.training), network.side, network.fresh, order.epochs)
        training = Training(network, store, split, recipe, folder, device, _SEED, progress)
        state = training.run()
        network.round_as_stored()
        predicted, _ = training.predict(split.held_out)
        facts = TrainedFacts(
            kind=order.kind,
            architecture=order.model,
            side=network.side,
            classes=classes,
            begins_with=network.begins_with,
            streams=[store.streams[part] for part in np.unique(store.parts[split.training])],
            held_out=held_out,
            crops=len(split.training),
            objects=len(np.unique(store.objects[split.training])),
            stopping_crops=len(split.stopping),
            epochs=state.epoch,
            best_epoch=state.best_epoch + 1,
            confusions=count_confusions(store.classes[split.held_out], predicted, len(classes)).tolist(),
            held_out_objects=len(np.unique(store.objects[split.held_out])),
            licences=_licences(fleet),
            command=order.command,
            ekya=__version__,
        )
        content = network.to_file(classes, facts.as_metadata())
    # The card first: a file of weights with the card of another one would be refused.
    digest = sha256(content).hexdigest()
    write_text_atomic(order.out.with_suffix(".md"), write_trained_card(facts, order.out.name, digest))
    write_bytes_atomic(order.out, content)
    shutil.rmtree(folder, ignore_errors=True)
    return facts


def choose_held_out(streams: tuple[StreamId, ...]) -> tuple[StreamId, ...]:
    """Returns a tenth of some streams, at least one, spread over them; none of a single stream."""
    if len(streams) < 2:
        return ()
    places = np.random.default_rng(_SEED).permutation(len(streams))[: max(1, round(len(streams) / 10))]
    return tuple(streams[place] for place in sorted(places))


def _with_labels(fleet: FleetConfig) -> FleetConfig:
    """Returns the fleet with its classes, and refuses streams without labels or without end."""
    from_file = fleet.golden.model == FILE
    for stream in fleet.streams:
        if stream.source.live or not (from_file or stream.source.gives_truth):
            raise UserError(
                f"key 'streams.{stream.id}.source': it comes without labels; leave it out, or label a "
                "recording (ekya golden label) and name the file: golden: {model: file, weights: l.parquet}"
            )
        endless = isinstance(stream.source, CitySpec) and stream.source.duration_s is None
        if endless and fleet.windows is None:
            raise UserError(
                f"key 'streams.{stream.id}.source.duration_s': the camera never ends; set it, or "
                "windows in the fleet file"
            )
    return with_classes(fleet) if from_file else fleet


def _require_streams(fleet: FleetConfig, held_out: tuple[StreamId, ...]) -> None:
    names = [stream.id for stream in fleet.streams]
    for one in held_out:
        if one not in names:
            raise UserError(f"--holdout: the fleet has no '{one}'; choose from {', '.join(names)}")
    if len(set(held_out)) == len(names):
        raise UserError("--holdout: no stream is left to train on; leave one out of the list")


def _require_crops(store: CropStore, split: Split, held_out: tuple[StreamId, ...]) -> None:
    if len(np.unique(store.classes[split.training])) < 2:
        raise UserError(
            f"--holdout: the streams that are left show {len(split.training)} labelled crops, of fewer than "
            "two classes; hold out others, or give more data"
        )
    if not len(split.stopping):
        raise UserError("the streams that train show each class in one object only; give more data")
    if not len(split.held_out):
        raise UserError(
            f"--holdout: {', '.join(held_out) or 'the stream'} shows no labelled object to measure on"
        )


def _agree_on_plan(
    fleet: FleetConfig,
    order: TrainingOrder,
    network: TrainableNetwork,
    held_out: tuple[StreamId, ...],
    device: str,
) -> int:
    """Writes down what the folder's training is, or compares it with this one; returns its threads.

    What stands there of a training that has not begun gives way; crops stay if they would be cut the same.

    Raises:
        UserError: the folder holds the checkpoint of another training.
    """
    shown = fleet.model_dump(mode="json", include={"streams", "classes", "windows", "window_s"})
    labels = sha256_of(label_file_of(fleet.golden)) if fleet.golden.model == FILE else None
    of_crops: dict[str, Any] = {
        "version of Ekya": __version__,
        "fleet": sha256(json.dumps([shown, labels]).encode()).hexdigest(),
        "side of crops": network.side,
    }
    asked: dict[str, Any] = {
        **of_crops,
        "version of torch": torch.__version__,
        "device": device,
        "--model": [order.kind, order.model],
        "--weights": None if order.weights is None else sha256_of(order.weights),
        "first weights": network.begins_with,
        "--holdout": list(held_out),
        "--epochs": order.epochs,
    }
    path = order.partial / "plan.json"
    try:
        plan = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        other = [key for key, value in asked.items() if plan.get(key) != value]
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path}: is damaged; remove the folder to begin anew") from error
    if other and (order.partial / CHECKPOINT).exists():
        raise UserError(
            f"--out {order.out}: {order.partial.name} beside it holds an unfinished training with another "
            f"{other[0].removeprefix('--')}; give the same, or remove that folder to begin anew"
        )
    if other:
        for file in order.partial.iterdir() if of_crops.keys() & set(other) else ():
            if file.name != LOCK:
                file.unlink()
        plan = {**asked, "threads": torch.get_num_threads()}
        write_text_atomic(path, json.dumps(plan, indent=1))
    return int(plan["threads"])


@contextmanager
def _deterministic(threads: int) -> Iterator[None]:
    """Makes torch compute the same to the bit each time; sums depend on the number of threads."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    # A GPU's kernels without such a form warn, and do their work.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


def _make_network(fleet: FleetConfig, order: TrainingOrder, classes: tuple[str, ...]) -> TrainableNetwork:
    known = tuple(CLASSIFIERS) if order.kind == "golden" else STUDENTS
    if order.model not in known:
        raise UserError(
            f"--model: no {order.kind} model that classifies is called '{order.model}'; use one of "
            f"{', '.join(known)}"
        )
    if order.kind == "golden":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            made = imported(CLASSIFIERS[order.model].trainable)(order.model, len(classes), order.weights)
        network: TrainableNetwork = made
        return network
    if fleet.edge.task is not Task.CLASSIFY:
        raise UserError(
            f"key 'edge.task': is {fleet.edge.task}, and what is trained here names objects in boxes; write "
            f"edge.task: {Task.CLASSIFY}"
        )
    edge = fleet.edge.model_copy(update={"model": order.model, "weights": order.weights})
    start = base_model(fleet.model_copy(update={"edge": edge, "classes": classes}), _SEED)
    began = "fresh weights" if order.weights is None else order.weights.name
    return TrainableNetwork(
        order.model,
        adapt(start, classes, start.head_width, _SEED),
        edge.resolution,
        began,
        fresh=order.weights is None,
        mean=(INPUT_MEAN,),
        scale=(INPUT_SCALE,),
    )


def _cut_crops(
    fleet: FleetConfig, classes: tuple[str, ...], side: int, folder: Path, progress: TrainingProgress
) -> CropStore:
    """Cuts the crops of all streams that are not cut yet."""
    most = most_alike(len(fleet.streams), len(classes), side)
    held = {}
    for place, stream in enumerate(fleet.streams):
        pictures = _labelled_pictures(fleet, stream, classes, progress)
        cut_stream(folder, stream.id, side, most, pictures, _SEED + place)
        held[stream.id] = open_crops(folder, stream.id, side)
    return CropStore(held)


def _labelled_pictures(
    fleet: FleetConfig, stream: StreamConfig, classes: tuple[str, ...], progress: TrainingProgress
) -> Iterator[LabelledPicture]:
    """Yields the labelled frames of a stream up to the end of the fleet's windows."""
    until_us = None if fleet.windows is None else fleet.windows * seconds_to_us(fleet.window_s)
    labels = class_of = None
    if fleet.golden.model == FILE:
        labels = read_labels(label_file_of(fleet.golden), [stream.id])
        class_of = class_of_each(classes, labels.head.names, fleet.golden.class_map, "the label file")
    with SourceProcess(stream.unbroken, classes, areas=stream.areas) as source:
        fps = source.wait_open()
        ends_s = [one for one in (source.length_s, None if until_us is None else until_us / US_PER_S) if one]
        progress.show_stream(stream.id, round(fps * min(ends_s)) if ends_s else None)
        for frame, truth in source.frames():
            if until_us is not None and frame.t_us >= until_us:
                break
            progress.show_cut_frames(1)
            if labels is not None and class_of is not None:
                found = labels.labels_at_frame(FramePlace(stream.id, frame.index))
                if found is None:
                    continue
                boxes, kinds = found.boxes, class_of[found.classes]
                kept = (kinds >= 0) & (found.scores >= GOLDEN_SCORE) & frame.find_counting(boxes)
                tracks = np.full(len(boxes), frame.t_us // _TRACK_US, np.int64)
            elif truth is not None:
                boxes, kinds, tracks = truth.boxes, truth.classes, truth.tracks
                kept = kinds >= 0
            else:
                continue
            yield LabelledPicture(frame.image, frame.t_us, boxes[kept], kinds[kept], tracks[kept])
        if source.died:
            raise UserError(
                f"stream {stream.id}: its source died ({source.died}); give the same command again"
            )


def _licences(fleet: FleetConfig) -> Mapping[str, str]:
    """Returns the licences of the streams' data sets, by their titles, as far as they are known."""
    found = {}
    for stream in fleet.streams:
        if isinstance(stream.source, CitySpec):
            found["rendered cameras"] = "drawn by Ekya, no data of others"
        elif (dataset := DATASETS.get(getattr(stream.source, "dataset", stream.source.kind))) is not None:
            found[dataset.title] = dataset.licence
    return found
