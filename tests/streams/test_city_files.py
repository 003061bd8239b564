"""Tests that the shipped scripts keep the promises of their card."""

from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from ekya.streams.synthetic import CitySpec

_FOLDER = Path(__file__).resolve().parents[2] / "datasets" / "synthetic_city"


def _sources(name: str) -> tuple[dict[str, CitySpec], dict[str, object], tuple[str, ...]]:
    raw = yaml.safe_load((_FOLDER / name).read_text(encoding="utf-8"))
    return {s["id"]: CitySpec(**s["source"]) for s in raw["streams"]}, raw, tuple(raw["classes"])


@pytest.mark.parametrize("name", ["fleet.yaml", "holdout.yaml"])
def test_city_files_every_stream_shows_objects(name: str) -> None:
    sources, _, classes = _sources(name)
    for spec in sources.values():
        _, truth = next(iter(spec.open(classes).frames()))
        assert truth is not None
        assert len(truth.classes) >= 3


def test_city_files_scenes_outlast_a_window() -> None:
    sources, raw, _ = _sources("fleet.yaml")
    window_s, windows = raw["window_s"], raw["windows"]
    assert isinstance(window_s, int)
    assert isinstance(windows, int)
    for spec in sources.values():
        starts = [scene.at_s for scene in spec.scenes] + [float(window_s * windows)]
        for start, end in pairwise(starts):
            # What is seen in window k is learnt in k+1. The first scene only has to last through window 0.
            lasts_through = start // window_s + (1 if start > 0 else 0)
            assert end >= min(lasts_through + 1, windows) * window_s


def test_city_files_held_out_seeds_are_disjoint() -> None:
    fleet, _, _ = _sources("fleet.yaml")
    held_out, _, _ = _sources("holdout.yaml")
    assert not {spec.seed for spec in fleet.values()} & {spec.seed for spec in held_out.values()}
