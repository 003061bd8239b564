"""What every γ really gives, with the labels and the trainer of a run, for ``profiler_worth.py``.

`ekya profile` records more than that, for a whole run to be played over it, and takes three times as long.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.config import FleetConfig, StreamConfig
from ekya.core.configs import RetrainConfig
from ekya.core.profile import family_of
from ekya.core.units import seconds_to_us
from ekya.labeling.detections import Proposals
from ekya.labeling.golden import GoldenModel, open_golden
from ekya.learning.edge import EdgeModel
from ekya.learning.labelled import LabelledCrops, concatenate, no_crops
from ekya.learning.memory import ExemplarMemory
from ekya.learning.operations import retraining_cost
from ekya.learning.predictor import accuracy
from ekya.setup import StreamSetup, base_model, fleet_classes, stream_setup
from ekya.streams.city import CitySpec
from ekya.streams.crops import crop_objects
from ekya.streams.frame import Truth
from ekya.workers.collector import WindowMaterial
from ekya.workers.costs import CostCard
from ekya.workers.inference import Classifier
from ekya.workers.labels import StreamLabels
from ekya.workers.preparation import StreamPreparation
from ekya.workers.retraining import retraining_of

OTHER_STREETS = 1000
"""Added to a city's seed for each seed of the recipe, so that every seed has streets of its own."""

ASKED_EVERY = 3
"""Objects of every third frame are asked about: in between, nobody has moved far."""

REST_PART = 0.25
"""How often a stream is not retrained before its next window, as when others had more to gain."""


@dataclass(frozen=True, slots=True)
class Given:
    """What one γ gave.

    Attributes:
        config: γ.
        validation: accuracy on the validation part before training and after each epoch.
        served: accuracy in the next window of the epoch that would serve.
        last: accuracy there of the last epoch.
        gpu_s: counted operations over the rates of the cost card.
    """

    config: RetrainConfig
    validation: tuple[float, ...]
    served: float
    last: float
    gpu_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One stream at the start of one window, and what every γ then gave.

    Attributes:
        seed, stream, window: which.
        prepared: what the micro-profiler may see, with the labels of the window before.
        labels: those.
        before: accuracy in this window of the model that is retrained.
        given: of each γ.
    """

    seed: int
    stream: str
    window: int
    prepared: StreamPreparation
    labels: StreamLabels
    memory: ExemplarMemory
    before: float
    given: tuple[Given, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SeenWindow:
    """What was kept of a window for labelling, and its true objects."""

    material: WindowMaterial
    truths: dict[int, Truth]
    asked: LabelledCrops


def cases(fleet: FleetConfig, card: CostCard, seed: int) -> Iterator[Case]:
    """Every stream and window of a fleet of synthetic cameras.

    From a window to the next a stream goes on with what a γ gave that is drawn anew each time, or is left
    as it was: so models are met that are fresh, stale, well and badly trained.
    """
    golden = open_golden(fleet.golden, fleet_classes(fleet))
    for place, stream in enumerate(fleet.streams):
        yield from _cases_of(fleet, place, stream, golden, card, seed)


def _cases_of(
    fleet: FleetConfig, place: int, stream: StreamConfig, golden: GoldenModel, card: CostCard, seed: int
) -> Iterator[Case]:
    if not isinstance(stream.source, CitySpec):
        raise ValueError(f"{stream.id} is no camera of the synthetic city, and only there truth is known")
    spec = stream.source.model_copy(update={"seed": stream.source.seed + OTHER_STREETS * seed})
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
            asked = _unlabelled(seen.asked, labels, earlier.truths)
            given, models = _train_all(fleet.retrain_configs(), prepared, labels, memory, asked, card, window)
            before = accuracy(prepared.serving, asked)
            yield Case(seed, stream.id, window, prepared, labels, memory, before, given)
            if rng.random() >= REST_PART:
                model = models[int(rng.integers(len(models)))]
                memory = memory.update(model, labels.training.crops)
        earlier = seen


def _windows(spec: CitySpec, fleet: FleetConfig, setup: StreamSetup) -> Iterator[SeenWindow]:
    """The windows of a camera, one after the other."""
    window_us, collector = seconds_to_us(fleet.window_s), setup.collector()
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
        if fleet.windows is not None and window >= fleet.windows:
            return
        collector.see(frame, Proposals(frame.boxes))
        truths[frame.index] = truth
        if frame.index % ASKED_EVERY == 0 and len(truth.boxes):
            times = np.full(len(truth.boxes), frame.t_us, np.int64)
            crops = crop_objects(frame.image, truth.boxes, side)
            parts.append(LabelledCrops(crops, truth.classes, truth.tracks, times))


def _unlabelled(asked: LabelledCrops, labels: StreamLabels, truths: dict[int, Truth]) -> LabelledCrops:
    """Objects that no label was taken from."""
    used: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for part in (labels.training, labels.validation):
        for frame, box in zip(part.frames.tolist(), part.boxes, strict=True):
            truth = truths[frame]
            used.append(truth.tracks[(truth.boxes == box).all(axis=1)])
    return asked.take(np.flatnonzero(~np.isin(asked.tracks, np.concatenate(used))))


def _train_all(
    configs: tuple[RetrainConfig, ...],
    prepared: StreamPreparation,
    labels: StreamLabels,
    memory: ExemplarMemory,
    asked: LabelledCrops,
    card: CostCard,
    window: int,
) -> tuple[tuple[Given, ...], list[EdgeModel]]:
    """What each γ gives, and its model.

    γ that differ in nothing but epochs are one training: its first epochs do not know how many follow.
    """
    given: dict[RetrainConfig, tuple[Given, EdgeModel]] = {}
    for group in sorted({(family_of(config), config.data_fraction) for config in configs}):
        alike = sorted(config for config in configs if (family_of(config), config.data_fraction) == group)
        given |= _train(alike, prepared, labels, memory, asked, card, window)
    return tuple(given[config][0] for config in configs), [given[config][1] for config in configs]


def _train(
    alike: list[RetrainConfig],
    prepared: StreamPreparation,
    labels: StreamLabels,
    memory: ExemplarMemory,
    asked: LabelledCrops,
    card: CostCard,
    window: int,
) -> dict[RetrainConfig, tuple[Given, EdgeModel]]:
    settings = prepared.settings
    retraining = retraining_of(prepared.model, alike[-1], labels, memory, settings, window)
    prepare_gpu_s, epoch_gpu_s = card.retraining_gpu_s(retraining_cost(retraining))
    validation = [retraining.prepare()]
    best, serves = -1.0, retraining.model()
    by_epochs = {config.epochs: config for config in alike}
    found: dict[RetrainConfig, tuple[Given, EdgeModel]] = {}
    while not retraining.done:
        result = retraining.run_epoch()
        validation.append(result.validation_accuracy)
        if result.validation_accuracy >= best:
            best, serves = result.validation_accuracy, retraining.model()
        if result.epoch in by_epochs:
            config = by_epochs[result.epoch]
            served = _accuracy(serves, settings.classes, asked)
            last = served
            if result.validation_accuracy < best:
                last = _accuracy(retraining.model(), settings.classes, asked)
            gpu_s = prepare_gpu_s + config.epochs * epoch_gpu_s
            found[config] = Given(config, tuple(validation), served, last, gpu_s), serves
    return found


def _accuracy(model: EdgeModel, fleet: tuple[str, ...], asked: LabelledCrops) -> float:
    return accuracy(Classifier(model, fleet), asked)
