"""Tests of generated folders in the layout of Cityscapes, through Ekya's own reader."""

import shutil
from pathlib import Path

import city_scenes
import difficulty
import numpy as np
import pytest
from city_pictures import Studio
from generators import contents, refusal, run_generator

from ekya.core.objects import iou_matrix
from ekya.streams.datasets.cityscapes import (
    CITYSCAPES,
    PAPER_CLASSES,
    CityscapesSpec,
    city_pairs,
    describe_pairs,
)
from ekya.system import files

ASKED = ("--cities", 4, "--pictures", 24, "--seed", 5, "--width", 256)
SPLITS = ("train", "val")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Four cities of 24 pictures in all; not to be changed."""
    made = tmp_path_factory.mktemp("cities") / "root"
    assert run_generator("cityscapes", "--out", made, *ASKED) == 0
    return made


def test_generated_cities_are_read_as_cityscapes(root, capsys):
    assert run_generator("cityscapes", "--out", root, *ASKED) == 0
    assert capsys.readouterr().out == (
        f"{root}: 24 pictures of 4 cities; next: ekya prepare cityscapes --root {root}\n"
    )
    survey = CITYSCAPES.survey(root)
    assert (set(survey.frames), survey.missing) == ({"aachen", "bochum", "bremen", "frankfurt"}, ())
    assert sum(survey.frames.values()) == 24 and len(set(survey.frames.values())) > 1
    assert len(city_pairs(root, "frankfurt", ("val",))) == survey.frames["frankfurt"]
    seen = []
    for city, count in survey.frames.items():
        source = CityscapesSpec(root=root, city=city).open(PAPER_CLASSES)
        frames = list(source.frames())
        assert (len(frames), source.damaged) == (count, 0)
        assert frames[0][0].image.shape == (128, 256, 3)
        seen += [name for _, truth in frames for name in truth.classes]
    assert set(seen) == set(range(len(PAPER_CLASSES)))


def test_generated_outlines_and_instance_maps_show_the_same_boxes(root, tmp_path):
    maps = shutil.copytree(root, tmp_path / "maps")
    for file in maps.rglob("*_polygons.json"):
        file.unlink()
    free = 0
    for city in CITYSCAPES.survey(root).frames:
        pairs = city_pairs(root, city, SPLITS)
        for outlined, mapped in zip(describe_pairs(root, pairs), describe_pairs(maps, pairs), strict=True):
            assert outlined.size == mapped.size == (2048, 1024)
            for name in {one.name for one in outlined.objects}:
                whole = np.array([one[1:] for one in outlined.objects if one.name == name])
                shown = np.array([one[1:] for one in mapped.objects if one.name == name]).reshape(-1, 4)
                if len(shown) < len(whole):
                    continue  # the outline of something in front covers one of them
                assert np.all(shown[:, :2] >= whole[:, :2]) and np.all(shown[:, 2:] <= whole[:, 2:] + 1)
                near = np.abs(shown - np.minimum(whole, (2048, 1024) * 2)) <= 1
                free += np.count_nonzero(near.all(axis=1))
    assert free > 30, "objects that nothing hides have the same box"


def test_generated_files_hold_what_the_published_ones_hold(root):
    text = "".join(file.read_text() for file in root.rglob("*_polygons.json"))
    for label in (
        '"rider"',
        'group"',
        '"road"',
        '"license plate"',
        '"deleted": 1',
        '"pole"',
        '"traffic sign"',
    ):
        assert label in text


def kinds_and_labels(sections=40):
    things = []
    for number in range(sections):
        section = city_scenes.draw_section(9, "ulm", number)
        rng = np.random.default_rng(number)
        things += [one for _ in range(20) for one in city_scenes.draw_things(rng, section)]
    return [(one.kind, one.label) for one in things if one.kind not in city_scenes.CLUTTER]


def test_generated_labels_are_wrong_as_often_as_stated():
    drawn = kinds_and_labels()
    wrong = [label for kind, label in drawn if label != kind]
    assert len(wrong) / len(drawn) == pytest.approx(difficulty.WRONG_LABELS, abs=0.008)
    assert {label for _, label in drawn} == set(PAPER_CLASSES)
    assert drawn == kinds_and_labels()


def test_generated_wrong_label_is_that_of_the_outline(monkeypatch):
    monkeypatch.setattr(difficulty, "WRONG_LABELS", 1.0)
    section = city_scenes.draw_section(1, "jena", 0)
    things = city_scenes.draw_things(np.random.default_rng(0), section)
    _, shown = Studio.open(section, (256, 128)).paint(things, np.random.default_rng(0))
    objects = [part for part in shown if part.kind in PAPER_CLASSES]
    assert objects and all(part.name in PAPER_CLASSES and part.name != part.kind for part in objects)


def test_generated_cities_differ_and_drift():
    def look(section):
        return section.hue, section.gains, section.gamma, section.blur, section.noise

    sections = [city_scenes.draw_section(3, city, 0) for city in ("aachen", "bochum", "ulm", "munster")]
    for a, b in zip(
        zip(*map(look, sections), strict=True), zip(*map(look, sections[1:]), strict=False), strict=True
    ):
        assert len(set(a)) == len(sections) and b
    later = [city_scenes.draw_section(3, "aachen", number) for number in range(12)]
    assert len({section.gamma for section in later}) == 1, "a city has one camera"
    for name in ("view", "lighting", "livery", "clothing", "fleet"):
        assert len({getattr(section.scene, name) for section in later}) > 1
    ends = city_scenes.section_ends(3, "aachen", 300)
    assert ends[-2] < 300 <= ends[-1]


def test_generated_folder_is_completed_after_an_interruption(root, tmp_path, monkeypatch, capsys):
    fresh, written = tmp_path / "fresh", []
    plain = files.sync_to_disk

    def interrupted(path):
        written.append(path)
        if len(written) == 60:
            raise KeyboardInterrupt
        plain(path)

    monkeypatch.setattr(files, "sync_to_disk", interrupted)
    assert run_generator("cityscapes", "--out", fresh, *ASKED) == 130
    assert "continues" in capsys.readouterr().err
    begun = contents(fresh)
    assert 5 < len(begun) < 40 and begun.items() <= contents(root).items()
    assert run_generator("cityscapes", "--out", fresh, *ASKED) == 0
    assert contents(fresh) == contents(root)


def test_generated_snippet_surrounds_its_labelled_picture(tmp_path):
    asked = ("--cities", 1, "--pictures", 2, "--width", 256, "--sequences", 1)
    assert run_generator("cityscapes", "--out", tmp_path / "one", *asked) == 0
    drawn = contents(tmp_path / "one")
    snippet = sorted(name for name in drawn if "sequence" in name)
    assert len(snippet) == 30 and snippet[0].endswith("aachen_000000_000000_leftImg8bit.png")
    assert drawn[snippet[19]] == drawn["leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png"]
    assert len({drawn[name] for name in snippet}) == 30
    # Its objects are followed from the labelled picture on, and back.
    root, index = tmp_path / "one", tmp_path / "aachen.jsonl"
    assert CITYSCAPES.survey(root).frames == {"aachen": 31}
    found = CITYSCAPES.examine(root, "aachen", PAPER_CLASSES, index, lambda objects: None)
    assert (found.frames, found.problems) == (31, ())
    source = CITYSCAPES.make_indexed_spec(root, "aachen", index).open(PAPER_CLASSES)
    assert source.fps == pytest.approx(31 / 3.6, abs=0.01)
    frames, truths = zip(*source.frames(), strict=True)
    assert [frame.t_us for frame in frames] == [60_000 * number for number in range(31)]
    alone = CityscapesSpec(root=root, city="aachen").open(PAPER_CLASSES)
    for number, (_, truth) in zip((19, 30), alone.frames(), strict=True):
        assert np.array_equal(truths[number].boxes, truth.boxes)
    known = set(truths[19].tracks)
    assert known and not known & set(truths[30].tracks)
    for truth in truths[:30]:
        assert set(truth.tracks) <= known
        of = dict(zip(truths[19].tracks, truths[19].classes, strict=True))
        assert [of[track] for track in truth.tracks] == truth.classes.tolist()
    near = [dict(zip(truth.tracks, truth.boxes, strict=True)) for truth in (truths[18], truths[19])]
    assert np.mean([iou_matrix(near[0][one][None], near[1][one][None]) for one in near[0]]) > 0.7
    # One that is missing costs itself, the labelled one its whole snippet.
    (root / snippet[3]).unlink()
    spec = CITYSCAPES.spec(root, "aachen")
    cut = spec.open(PAPER_CLASSES)
    assert (len(list(cut.frames())), cut.damaged) == (30, 1)
    (root / "leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png").write_bytes(b"")
    cut = spec.open(PAPER_CLASSES)
    assert ([frame.t_us for frame, _ in cut.frames()], cut.damaged) == ([1_800_000], 1)


def test_generator_of_cities_refuses_in_one_sentence(root, tmp_path, capsys):
    assert "made with other options" in refusal(capsys, "cityscapes", "--out", root, "--pictures", 30)
    (tmp_path / "mine.txt").touch()
    assert "holds other files" in refusal(capsys, "cityscapes", "--out", tmp_path)
    few = refusal(capsys, "cityscapes", "--out", tmp_path / "new", "--cities", 9, "--pictures", 3)
    assert "each of 9 cities needs one" in few
    assert "'x' is no whole number" in refusal(capsys, "cityscapes", "--out", tmp_path, "--seed", "x")
    assert run_generator("cityscapes", "--help") == 0
    assert "--pictures 500 --sequences 5" in capsys.readouterr().out
