"""Tests that the shipped scripts keep the promises of their card."""

import itertools
import subprocess
import sys
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from ekya.core.errors import UserError
from ekya.streams.ingest.frame import Frame, Truth
from ekya.streams.synthetic import KINDS, CitySpec, StreetScene

_DRIFT = (
    StreetScene(mix={"person": 1.0}, density=6),
    StreetScene(at_s=6, mix={"bus": 1.0, "truck": 1.0}, view="front", lighting="night", livery="south"),
)


def _read(spec: CitySpec, count: int, classes: tuple[str, ...] = KINDS) -> list[tuple[Frame, Truth]]:
    pairs = []
    for frame, truth in itertools.islice(spec.open(classes).frames(), count):
        assert truth is not None
        pairs.append((frame, truth))
    return pairs


def _iou(a: np.ndarray, b: np.ndarray) -> float:
    inner = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
    return float(inner / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - inner))


def _overlaps(pairs: list[tuple[Frame, Truth]], apart: int) -> list[float]:
    found = []
    for (_, first), (_, later) in zip(pairs, pairs[apart:], strict=False):
        rows = {int(track): row for row, track in enumerate(later.tracks)}
        for row, track in enumerate(first.tracks):
            if int(track) in rows:
                found.append(_iou(first.boxes[row], later.boxes[rows[int(track)]]))
    return found


def test_city_other_process_has_same_pixels() -> None:
    code = (
        "import itertools, zlib; from ekya.streams.synthetic import CitySpec, KINDS\n"
        "frames = itertools.islice(CitySpec(seed=5).open(KINDS).frames(), 8)\n"
        "print(zlib.crc32(b''.join(frame.image.tobytes() for frame, _ in frames)))"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = zlib.crc32(b"".join(frame.image.tobytes() for frame, _ in _read(CitySpec(seed=5), 8)))
    assert int(there) == here


def test_city_other_seed_has_other_pixels() -> None:
    (one, _), (other, _) = _read(CitySpec(seed=1), 1)[0], _read(CitySpec(seed=2), 1)[0]
    assert np.mean(np.abs(one.image.astype(int) - other.image)) > 5


@pytest.mark.parametrize("view", ["side", "front", "high"])
def test_city_tracks_are_unique_and_continuous(view: str) -> None:
    pairs = _read(CitySpec(seed=4, scenes=(StreetScene.model_validate({"view": view}),)), 70)
    class_of: dict[int, int] = {}
    for frame, truth in pairs:
        assert len(set(truth.tracks.tolist())) == len(truth.tracks)
        assert (truth.boxes[:, :2] >= 0).all()
        assert (truth.boxes[:, 2:] <= frame.image.shape[1::-1]).all()
        assert (truth.boxes[:, 2:] > truth.boxes[:, :2]).all()
        for track, kind in zip(truth.tracks.tolist(), truth.classes.tolist(), strict=True):
            assert class_of.setdefault(track, kind) == kind
    next_frame, a_second = _overlaps(pairs, 1), _overlaps(pairs, 5)
    # At 10 frames a second an object overlaps itself well in the next frame, and hardly five frames later.
    assert min(next_frame) > 0.25
    assert 0.5 < np.median(next_frame) < 0.8
    assert np.mean(np.array(a_second) < 0.5) > 0.8
    assert len(class_of) > 8


def test_city_density_sets_objects_in_view() -> None:
    few, many = (
        np.mean([len(t.tracks) for _, t in _read(CitySpec(seed=6, scenes=(StreetScene(density=d),)), 60)])
        for d in (3, 8)
    )
    assert few <= 3
    assert 5 < many <= 8


def test_city_cut_changes_mix_and_light() -> None:
    pairs = _read(CitySpec(seed=9, fps=5, scenes=_DRIFT), 60)
    before, after = pairs[:30], pairs[30:]
    named = [[{KINDS[c] for c in truth.classes} for _, truth in part] for part in (before, after)]
    assert set().union(*named[0]) == {"person"}
    assert set().union(*named[1]) == {"bus", "truck"}
    assert np.mean(after[0][0].image) < 0.6 * np.mean(before[-1][0].image)
    tracks_before = {int(track) for _, truth in before for track in truth.tracks}
    tracks_after = {int(track) for _, truth in after for track in truth.tracks}
    assert not tracks_before & tracks_after


def test_city_ramp_changes_light_gradually() -> None:
    scenes = (StreetScene(density=6), StreetScene(at_s=2, ramp_s=8, lighting="night", density=6))
    pairs = _read(CitySpec(seed=10, fps=5, scenes=scenes), 52)
    brightness = np.array([np.mean(frame.image) for frame, _ in pairs])
    assert brightness[51] < 0.6 * brightness[0]
    assert np.abs(np.diff(brightness)).max() < 0.1 * brightness[0]
    assert set(pairs[9][1].tracks.tolist()) & set(pairs[11][1].tracks.tolist())


def test_city_classes_index_the_fleets_names() -> None:
    spec = CitySpec(seed=2, scenes=(StreetScene(mix={"bus": 1.0}),))
    seen = {int(c) for _, truth in _read(spec, 10, ("car", "bus")) for c in truth.classes}
    assert seen == {1}


def test_city_unknown_class_is_user_error() -> None:
    with pytest.raises(UserError, match="'tram'"):
        CitySpec(seed=1).open((*KINDS, "tram"))
    with pytest.raises(UserError, match=r"scenes\[0\].*'truck'"):
        CitySpec(seed=1).open(tuple(kind for kind in KINDS if kind != "truck"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": 1, "sceens": []},
        {"seed": -1},
        {"seed": 1, "scenes": [{"at_s": 3}]},
        {"seed": 1, "scenes": [{"at_s": 0}, {"at_s": 5}, {"at_s": 5}]},
        {"seed": 1, "scenes": [{"mix": {"car": 0}}]},
        {"seed": 1, "scenes": [{"mix": {"tram": 1}}]},
        {"seed": 1, "scenes": [{"lighting": "noon"}]},
    ],
)
def test_city_spec_wrong_value_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CitySpec.model_validate(wrong)


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
