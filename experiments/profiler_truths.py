"""True outcome of every γ, with the labels and the trainer of a run, for ``profiler_worth.py``.

`ekya profile` records more, so that a whole run can be played over it, and takes three times as long.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_sections import StreamConfig
from ekya.core.configs import RetrainConfig
from ekya.core.profile import family_of
from ekya.core.units import seconds_to_us
from ekya.models.edge.model import EdgeModel, clone, split_at, to_input
from ekya.models.edge.predictor import FORWARD_BATCH
from ekya.models.golden.detections import Proposals
from ekya.models.golden.golden_model import GoldenModel, open_golden
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops, concatenate, no_crops
from ekya.models.training.operations import retraining_cost
from ekya.models.training.trainer import Retraining
from ekya.pipeline.base_model import base_model
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.costs import CostCard
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.inference import Classifier
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.retrain_setup import retraining_of
from ekya.pipeline.setup import StreamSetup, stream_setup
from ekya.pipeline.stream_preparation import StreamPreparation
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.frame import Truth
from ekya.streams.synthetic import CitySpec

OTHER_STREETS = 1000
"""Added to a city's seed for each seed of the recipe, so that every seed has different streets."""

ASKED_EVERY = 3
"""Objects of every third frame are tested on: in between, no object has moved far."""

ASKED_FRAMES = 70
"""Approximate number of frames of a long window that are tested on: they show nearly every object of it."""

LONG_FPS = 5.0
"""Frames a second of a stretched fleet: as many as it takes to follow an object from one to the next."""

LONG_LABELS = 160
"""Labels a window of a stretched fleet.

Of the 110 objects that may be labelled there, the kept frames show about a hundred, and few of them more than
twice.
"""

REST_PART = 0.25
"""Probability that a stream is not retrained before its next window, as when others had more to gain."""


@dataclass(frozen=True, slots=True)
class Given:
    """Outcome of one γ.

    Attributes:
        config: γ.
        validation: accuracy on the validation part before training and after each epoch.
        served: accuracy in the next window of the epoch that would serve.
        here: accuracy of that epoch on the unlabelled objects of the labelled window.
        last: accuracy in the next window of the last epoch.
        gpu_s: counted operations over the rates of the cost card.
    """

    config: RetrainConfig
    validation: tuple[float, ...]
    served: float
    here: float
    last: float
    gpu_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One stream at the start of one window, with the outcome of every γ.

    Attributes:
        seed, place, stream, window: of the case; ``place`` is the stream's index in the fleet.
        model: model to retrain.
        labels: of the window before.
        exemplars: number that a retraining mixes in.
        before: accuracy in this window of the model to retrain.
        here: its accuracy on the unlabelled objects of the window before.
        asked_objects: number of objects of this window that outcomes are measured on.
        given: outcome of each γ.
    """

    seed: int
    place: int
    stream: str
    window: int
    model: EdgeModel
    labels: StreamLabels
    exemplars: int
    before: float
    here: float
    asked_objects: int
    given: tuple[Given, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SeenWindow:
    """Material of a window for labelling, its true objects, and the crops to test on."""

    material: WindowMaterial
    truths: dict[int, Truth]
    asked: LabelledCrops


def stretched(fleet: FleetConfig, window_s: float) -> FleetConfig:
    """Returns the fleet with windows of ``window_s``: scripts slowed down in proportion, the same traffic."""
    slower = window_s / fleet.window_s
    return fleet.model_copy(
        update={
            "name": f"{fleet.name}-{window_s:g}s",
            "window_s": window_s,
            "golden": fleet.golden.model_copy(update={"labels_per_window": LONG_LABELS}),
            "streams": tuple(
                stream.model_copy(update={"source": _slower(city_of(stream), slower)})
                for stream in fleet.streams
            ),
        }
    )


def _slower(spec: CitySpec, slower: float) -> CitySpec:
    scenes = tuple(
        scene.model_copy(update={"at_s": slower * scene.at_s, "ramp_s": slower * scene.ramp_s})
        for scene in spec.scenes
    )
    return spec.model_copy(update={"fps": LONG_FPS, "scenes": scenes})


def is_steady(fleet: FleetConfig, place: int, window: int) -> bool:
    """Returns whether the stream's script changes nothing in a window."""
    begins, ends = window * fleet.window_s, (window + 1) * fleet.window_s
    scenes = city_of(fleet.streams[place]).scenes[1:]
    return not any(scene.at_s < ends and scene.at_s + scene.ramp_s > begins for scene in scenes)


def city_of(stream: StreamConfig) -> CitySpec:
    """Returns the camera, which must be one of the synthetic city."""
    if not isinstance(stream.source, CitySpec):
        raise ValueError(f"{stream.id} is no camera of the synthetic city, and only there truth is known")
    return stream.source


def cases(fleet: FleetConfig, card: CostCard, seed: int, in_turn: int = 1) -> Iterator[Case]:
    """Yields every ``in_turn``-th window of every synthetic camera of a fleet, different ones for each seed.

    After each window a stream gets the model of a randomly drawn γ, or keeps its own: so the cases include
    fresh, stale, well and badly trained models.
    """
    golden = open_golden(fleet.golden, fleet_classes(fleet))
    for place, stream in enumerate(fleet.streams):
        windows = range(1, (fleet.windows or 1))
        asked_in = frozenset(window for window in windows if (window + place + seed) % in_turn == 0)
        if asked_in:
            yield from _cases_of(fleet, place, stream, golden, card, seed, asked_in)


def _cases_of(
    fleet: FleetConfig,
    place: int,
    stream: StreamConfig,
    golden: GoldenModel,
    card: CostCard,
    seed: int,
    asked_in: frozenset[int],
) -> Iterator[Case]:
    city = city_of(stream)
    spec = city.model_copy(update={"seed": city.seed + OTHER_STREETS * seed})
    setup = stream_setup(fleet, place, spec.fps, seed)
    model, memory = base_model(fleet, seed), ExemplarMemory()
    rng = np.random.default_rng((seed, place))
    earlier: SeenWindow | None = None
    for window, seen in enumerate(_windows(spec, fleet, setup)):
        if earlier is not None:
            prepared = StreamPreparation(
                setup.settings,
                earlier.material,
                Classifier(model, setup.settings.classes),
                golden,
                exemplars=memory.size,
            )
            labels = prepared.label()
            retrain = Retrain(prepared, labels, memory, card, window)
            configs = fleet.retrain_configs()
            drawn = int(rng.integers(len(configs))) if rng.random() >= REST_PART else None
            models = {}
            if window in asked_in:
                asked = Asked(
                    _unlabelled(seen.asked, labels, earlier.truths),
                    _unlabelled(earlier.asked, labels, earlier.truths),
                    model,
                    setup.settings.classes,
                )
                given, models = _train_all(configs, retrain, asked)
                yield Case(
                    seed,
                    place,
                    stream.id,
                    window,
                    model,
                    labels,
                    memory.size,
                    *asked.accuracies(model),
                    asked.objects,
                    given,
                )
            elif drawn is not None:
                models = _train([configs[drawn]], retrain, None)[1]
            if drawn is not None:
                model = models[configs[drawn]]
                memory = memory.update(model, labels.training.examples)
        if window == max(asked_in):
            return
        earlier = seen


def _windows(spec: CitySpec, fleet: FleetConfig, setup: StreamSetup) -> Iterator[SeenWindow]:
    """Yields the windows of a camera, one after the other."""
    window_us, frames = seconds_to_us(fleet.window_s), spec.fps * fleet.window_s
    collector = setup.collector()
    every = max(ASKED_EVERY, int(frames / ASKED_FRAMES))
    truths: dict[int, Truth] = {}
    parts: list[LabelledCrops] = []
    side, at = setup.settings.side, 0
    for frame, truth in spec.open(setup.settings.classes).frames():
        if frame.boxes is None or truth is None:
            raise ValueError("the synthetic city knows its objects")
        window = frame.t_us // window_us
        if window > at:
            yield SeenWindow(collector.close(at), truths, concatenate(parts) if parts else no_crops(side))
            truths, parts, at = {}, [], window
        collector.see(frame, Proposals(frame.boxes))
        truths[frame.index] = truth
        if frame.index % every == 0 and len(truth.boxes):
            times = np.full(len(truth.boxes), frame.t_us, np.int64)
            crops = crop_objects(frame.image, truth.boxes, side)
            parts.append(LabelledCrops(crops, truth.classes, truth.tracks, times))


def _unlabelled(asked: LabelledCrops, labels: StreamLabels, truths: dict[int, Truth]) -> LabelledCrops:
    """Returns the objects that no label was taken from."""
    used: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for part in (labels.training, labels.validation):
        for frame, box in zip(part.frames.tolist(), part.boxes, strict=True):
            truth = truths[frame]
            used.append(truth.tracks[(truth.boxes == box).all(axis=1)])
    return asked.take(np.flatnonzero(~np.isin(asked.tracks, np.concatenate(used))))


@dataclass(frozen=True, slots=True, eq=False)
class Retrain:
    """Inputs that are the same for every γ of a stream's window."""

    prepared: StreamPreparation
    labels: StreamLabels
    memory: ExemplarMemory
    card: CostCard
    window: int

    def start(self, config: RetrainConfig) -> Retraining:
        """Returns a retraining that has not begun."""
        prepared = self.prepared
        return retraining_of(prepared.model, config, self.labels, self.memory, prepared.settings, self.window)


class Asked:
    """Unlabelled objects that outcomes are measured on, with cached activations of the frozen blocks.

    Args:
        then: of the window that follows the labels.
        here: of the window that was labelled.
        start: model to retrain.
        fleet: classes that the objects' classes index.
    """

    def __init__(
        self, then: LabelledCrops, here: LabelledCrops, start: EdgeModel, fleet: tuple[str, ...]
    ) -> None:
        self._then = len(then)
        self._all = concatenate([then, here])
        self._start, self._fleet = start, fleet
        self._activations: dict[int, Tensor] = {}
        self.objects = len(np.unique(then.tracks))

    @torch.inference_mode()
    def accuracies(self, model: EdgeModel, trained_blocks: int = 0) -> tuple[float, float]:
        """Returns the accuracy of a retrained model in the next window, and in the labelled one.

        Only the last ``trained_blocks`` blocks of ``model`` are used; the others are those of the start
        model.
        """
        if trained_blocks not in self._activations:
            prefix, _ = split_at(clone(self._start), trained_blocks)
            parts = torch.split(to_input(self._all.crops, "cpu"), FORWARD_BATCH)
            self._activations[trained_blocks] = torch.cat([prefix.eval()(part) for part in parts])
        _, suffix = split_at(clone(model), trained_blocks)
        parts = torch.split(self._activations[trained_blocks], FORWARD_BATCH)
        answers = torch.cat([suffix.eval()(part).argmax(dim=1) for part in parts]).numpy()
        of_fleet = np.array([self._fleet.index(name) for name in model.classes], np.int64)
        right = of_fleet[answers] == self._all.classes
        return _mean(right[: self._then]), _mean(right[self._then :])


def _mean(right: NDArray[np.bool_]) -> float:
    return float(right.mean()) if len(right) else 0.0


Models = dict[RetrainConfig, EdgeModel]


def _train_all(
    configs: tuple[RetrainConfig, ...], retrain: Retrain, asked: Asked
) -> tuple[tuple[Given, ...], Models]:
    """Returns the outcome of each γ, and its model.

    γ that differ only in epochs are one training: its first epochs do not depend on how many follow.
    """
    given: dict[RetrainConfig, Given] = {}
    models: Models = {}
    for group in sorted({(family_of(config), config.data_fraction) for config in configs}):
        alike = sorted(config for config in configs if (family_of(config), config.data_fraction) == group)
        found, trained = _train(alike, retrain, asked)
        given |= found
        models |= trained
    return tuple(given[config] for config in configs), models


def _train(
    alike: list[RetrainConfig], retrain: Retrain, asked: Asked | None
) -> tuple[dict[RetrainConfig, Given], Models]:
    """Trains γ that differ only in epochs; without ``asked`` only the models are made."""
    retraining = retrain.start(alike[-1])
    prepare_gpu_s, epoch_gpu_s = retrain.card.retraining_gpu_s(retraining_cost(retraining))
    validation = [retraining.prepare()]
    best, serves, served = -1.0, retraining.model(), (0.0, 0.0)
    fresh = True
    by_epochs = {config.epochs: config for config in alike}
    given: dict[RetrainConfig, Given] = {}
    models: Models = {}
    while not retraining.done:
        result = retraining.run_epoch()
        validation.append(result.validation_accuracy)
        if result.validation_accuracy >= best:
            best, serves, fresh = result.validation_accuracy, retraining.model(), True
        if result.epoch in by_epochs:
            config = by_epochs[result.epoch]
            models[config] = serves
            if asked is not None:
                if fresh:
                    served, fresh = asked.accuracies(serves, config.trainable_blocks), False
                last = served
                if result.validation_accuracy < best:
                    last = asked.accuracies(retraining.model(), config.trainable_blocks)
                gpu_s = prepare_gpu_s + config.epochs * epoch_gpu_s
                given[config] = Given(config, tuple(validation), *served, last[0], gpu_s)
    return given, models
