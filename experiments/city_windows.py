"""Labelled crops of the synthetic city's streams by window, for the other recipes."""

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
import yaml

from ekya.core.units import seconds_to_us
from ekya.models.training.labelled import LabelledCrops, concatenate, no_crops
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.synthetic.scene import KINDS
from ekya.streams.synthetic.source import CitySpec

SIDE = 32
"""Side of a crop in pixels."""


@dataclass(frozen=True, slots=True)
class CityFleet:
    """Part of a fleet file that the recipes use.

    Attributes:
        classes: in the order of class indices.
        streams: each stream's id and its script.
        window_s: length of a window; 0.0 if the file does not give it.
        windows: number of windows; 0 if the file does not give it.
    """

    classes: tuple[str, ...]
    streams: tuple[tuple[str, CitySpec], ...]
    window_s: float
    windows: int


def read_fleet(path: Path) -> CityFleet:
    """Reads the synthetic streams of a fleet file."""
    content = yaml.safe_load(path.read_text())
    streams = tuple(
        (str(entry["id"]), CitySpec.model_validate(entry["source"])) for entry in content["streams"]
    )
    return CityFleet(
        tuple(content.get("classes", KINDS)),
        streams,
        float(content.get("window_s", 0.0)),
        int(content.get("windows", 0)),
    )


def windows_of(
    spec: CitySpec, classes: tuple[str, ...], window_s: float, windows: int, every: int
) -> list[LabelledCrops]:
    """Returns every object of every ``every``-th frame with its true class, one entry a window.

    Track numbers are the stream's own, so an object keeps its number across windows.
    """
    parts: list[list[LabelledCrops]] = [[] for _ in range(windows)]
    window_us = seconds_to_us(window_s)
    for frame, truth in spec.open(classes).frames():
        window = frame.t_us // window_us
        if window >= windows:
            break
        if truth is None or frame.index % every or len(truth.boxes) == 0:
            continue
        times = np.full(len(truth.boxes), frame.t_us, np.int64)
        crops = crop_objects(frame.image, truth.boxes, SIDE)
        parts[window].append(LabelledCrops(crops, truth.classes, truth.tracks, times))
    return [concatenate(part) if part else no_crops(SIDE) for part in parts]


def sample(labelled: LabelledCrops, count: int, seed: int) -> LabelledCrops:
    """Returns a uniform random sample in its original order, as under a golden model's label budget."""
    if count >= len(labelled):
        return labelled
    chosen = np.random.default_rng((seed, count)).choice(len(labelled), count, replace=False)
    return labelled.select_rows(np.sort(chosen))


def one_thread() -> None:
    """Makes torch and OpenCV single-threaded, so that results do not depend on the number of cores."""

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    cv2.setNumThreads(1)
