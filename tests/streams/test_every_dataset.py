"""Tests that hold for every data set of ``ekya prepare``. A new one is added to ``SAMPLES``."""

from collections.abc import Callable, Mapping
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import waymo_sample
from draw_samples import draw_cityscapes, draw_image_folder, draw_sample_list

from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.streams.sources import DATASETS


def cityscapes(root: Path) -> None:
    draw_cityscapes(root, {"aachen": 3, "ulm": 2})


def sample_list(root: Path) -> None:
    draw_sample_list(root, "north", 3)
    draw_sample_list(root, "south", 4, video=True)


def image_folder(root: Path) -> None:
    draw_image_folder(root / "gate", 1)


def waymo(root: Path) -> None:
    root.mkdir()
    for segment in waymo_sample.sample_segments(3, 4, (96, 64)):
        waymo_sample.write_v2(root, segment)


SAMPLES: Mapping[str, Callable[[Path], None]] = {
    "cityscapes": cityscapes,
    "sample-list": sample_list,
    "image-folder": image_folder,
    "waymo": waymo,
}
"""For each data set, a function that creates a small sample in a folder."""


def test_dataset_registry_has_a_sample_for_each():
    assert SAMPLES.keys() == DATASETS.keys()


@pytest.fixture(params=SAMPLES)
def dataset(request, tmp_path, copied):
    copied(SAMPLES[request.param], tmp_path / "data")
    return DATASETS[request.param]


def examined(dataset, tmp_path):
    """Yields name, findings and source of every stream."""
    root = tmp_path / "data"
    classes = dataset.classes_in(root)
    for name, count in dataset.survey(root).frames.items():
        index = tmp_path / f"{name}.jsonl"
        on_frame = Mock()
        found = dataset.examine(root, name, classes, index, on_frame)
        assert on_frame.call_count == count
        yield name, found, dataset.make_indexed_spec(root, name, index).open(classes)


def test_dataset_findings_match_its_source(dataset, tmp_path):
    classes = dataset.classes_in(tmp_path / "data")
    for _, found, source in examined(dataset, tmp_path):
        frames = list(source.frames())
        counts = np.zeros(len(classes), int)
        for _, truth in frames:
            np.add.at(counts, truth.classes, 1)
        assert (found.frames, found.problems) == (len(frames), ())
        assert found.objects == {name: count for name, count in zip(classes, counts, strict=True) if count}
        assert found.duration_s == pytest.approx(frames[-1][0].t_us / 1e6 + 1 / source.fps)


def test_dataset_index_gives_same_frames_as_listing(dataset, tmp_path):
    root = tmp_path / "data"
    classes = dataset.classes_in(root)
    for name, _, indexed in examined(dataset, tmp_path):
        spec = dataset.make_indexed_spec(root, name, tmp_path / f"{name}.jsonl")
        walked = spec.model_copy(update={"index": None}).open(classes)
        pairs = list(zip(indexed.frames(), walked.frames(), strict=True))
        assert pairs
        for (one, its_truth), (other, other_truth) in pairs:
            assert one.t_us == other.t_us
            assert np.array_equal(one.image, other.image)
            assert np.array_equal(its_truth.boxes, other_truth.boxes)
            assert np.array_equal(its_truth.classes, other_truth.classes)


@pytest.mark.parametrize(
    ("name", "frames"),
    [
        ("cityscapes", {"aachen": 3, "lindau": 2}),
        ("sample-list", {"bridge": 8, "crossing": 3}),
        ("image-folder", {"camera": 12}),
    ],
)
def test_dataset_shipped_sample_is_complete(name, frames):
    root = shipped_path(f"datasets/{name.replace('-', '_')}/sample")
    survey = DATASETS[name].survey(root)
    assert (dict(survey.frames), survey.missing) == (frames, ())
    for stream, count in frames.items():
        spec = DATASETS[name].make_indexed_spec(root, stream, root).model_copy(update={"index": None})
        source = spec.open(DATASETS[name].classes_in(root))
        shown = [len(truth.classes) for _, truth in source.frames()]
        assert (len(shown), source.damaged) == (count, 0)
        assert sum(shown) > 5


def test_dataset_empty_folder_has_no_streams(dataset, tmp_path):
    (tmp_path / "empty").mkdir()
    assert not dataset.survey(tmp_path / "empty").frames
    assert all(len(words) > 10 for words in (dataset.licence, dataset.had_from, dataset.layout))


@pytest.mark.parametrize(
    "content", ["", "no json\n", '{"index": 1}\n', "[]\n", '{"index":1,"dataset":"other"}\n']
)
def test_dataset_damaged_index_is_user_error(dataset, tmp_path, content):
    root = tmp_path / "data"
    name = next(iter(dataset.survey(root).frames))
    index = tmp_path / "broken.jsonl"
    index.write_text(content)
    with pytest.raises(UserError, match=r"broken\.jsonl.*ekya prepare"):
        list(dataset.make_indexed_spec(root, name, index).open(dataset.classes_in(root)).frames())
