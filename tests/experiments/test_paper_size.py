"""Gains over seeds: of ten cameras at the paper's size, and of adapted detectors.

Beside the gains stand the best and the worst baseline, and the videos that lose.
"""

from dataclasses import replace

import pytest
from detect_gains import ADAPTED, FROZEN, Estimate, Row, gains, lower
from paper_size import EKYA, PAPER_SIZE, Played, table_of, traces_of
from recipe_table import Asked

from ekya.core.errors import UserError
from ekya.results.storage.trace_file import write_trace
from ekya.simulation.trace.generate import generate_trace

SEEDS = (41, 42)
BEST, WORST = "uniform (Config 2, 30%)", "uniform (Config 1, 50%)"


def write(path, seed, streams=2):
    """Writes a trace as if it was recorded with this seed."""
    made = replace(generate_trace(seed, streams, 2), recorded=f"seed {seed}, 2 windows, the youngest starts")
    write_trace(path, made)
    return path


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    return [write(folder / f"{seed}.parquet", seed) for seed in SEEDS]


def played(scheduler, *accuracies, gpus=1.0):
    return [Played(gpus, scheduler, seed, each) for seed, each in enumerate(accuracies)]


def test_traces_of_one_fleet_are_known_by_their_seeds(traces):
    assert tuple(traces_of(traces)) == SEEDS


def test_traces_of_another_fleet_or_seed_are_refused(traces, tmp_path):
    with pytest.raises(UserError, match="another trace with seed 41"):
        traces_of([traces[0], traces[0]])
    with pytest.raises(UserError, match=r"not those of .*41\.parquet; record both to the end"):
        traces_of([traces[0], write(tmp_path / "more.parquet", 42, streams=3)])
    write_trace(tmp_path / "drawn.parquet", generate_trace(1, 2, 2))
    with pytest.raises(UserError, match="does not say with which seed"):
        traces_of([tmp_path / "drawn.parquet"])


def test_table_gains_are_paired_by_seed():
    rows = [*played(EKYA, 0.8, 0.6), *played("paper", 0.7, 0.5), *played(EKYA, 0.9, gpus=2.0)]
    ours, paper, alone = table_of(rows)
    assert (ours["accuracy"], ours["ekya_above"]) == pytest.approx((0.7, 0.0))
    assert (paper["ekya_above"], paper["ekya_above_low"]) == pytest.approx((0.1, 0.1))
    assert paper["accuracy_low"] < 0.5
    assert (alone["gpus"], alone["seeds"], alone["accuracy_low"]) == (2.0, 1, None)


def test_beside_names_best_and_worst_baseline_with_and_without_checkpoints():
    rows = [
        *played(EKYA, 0.8),
        *played("no-retrain", 0.5),
        *played(BEST, 0.7),
        *played(WORST, 0.6),
        *played(f"{BEST} with checkpoints", 0.65),
        *played(f"{WORST} with checkpoints", 0.75),
        *played("uniform:inference=700", 0.77),
        *played("uniform:inference=300", 0.2),
    ]
    told = {one.what: one.ours["ten cameras"] for one in PAPER_SIZE.beside(table_of(rows))}
    assert told == {
        "1 GPU: accuracy of ekya": "80.0%",
        "1 GPU: ekya above no-retrain, points": "+30.0",
        "1 GPU: ekya above the best rule of one line, points": "+3.0, uniform:inference=700",
        "1 GPU: ekya above the best uniform baseline, points": f"+10.0, {BEST}",
        "1 GPU: ekya above the worst uniform baseline, points": f"+20.0, {WORST}",
        "1 GPU: ekya above the best uniform baseline with checkpoints, points": f"+5.0, {WORST}",
        "1 GPU: ekya above the worst uniform baseline with checkpoints, points": f"+15.0, {BEST}",
    }


def test_recipe_plays_all_schedulers_over_every_seed(traces):
    rows = list(PAPER_SIZE.play(Asked(at=(1.0,), traces=tuple(traces))))
    names = {row["scheduler"] for row in rows}
    assert {EKYA, "thief", "no-retrain", "oracle", WORST, f"{WORST} with checkpoints"} <= names
    assert {(row["gpus"], row["seeds"]) for row in rows} == {(1.0, 2)}


STREET, GATE, YARD = "street.mp4", "gate.mp4", "yard.mp4"


def rows(video, seed, whole, later, price="real"):
    """Returns the rows of both ways; the student starts at 40% and gains this much."""
    none = later is None
    return [
        Row(video, seed, price, FROZEN, 0.4, None if none else 0.5, 1.0),
        Row(video, seed, price, ADAPTED, 0.4 + whole, None if none else 0.5 + later, 2.0),
    ]


def test_estimate_is_students_interval():
    found = Estimate.over_seeds([0.1, 0.2, 0.3])
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, -0.0484, 0.4484), abs=1e-4)
    assert found.in_points() == "+20.0 (-4.8 to +44.8)"
    assert Estimate.over_seeds([0.05]) == Estimate(0.05, None, None)
    assert Estimate.over_seeds([0.05]).in_points() == "+5.0"


def test_gains_are_by_video_and_in_the_mean_over_videos_of_each_seed():
    every = [
        *rows(STREET, 1, 0.20, 0.30),
        *rows(STREET, 2, 0.30, 0.40),
        *rows(GATE, 1, 0.00, None),
        *rows(GATE, 2, 0.02, 0.04),
        *rows(GATE, 2, 0.9, 0.9, price="20"),
    ]
    street, gate, both, others = gains(every, "real", {STREET})
    assert (street.over, street.seeds) == (STREET, 2)
    assert (street.whole.mean, street.after.mean) == pytest.approx((0.25, 0.35))
    assert (gate.whole.mean, gate.after.mean) == pytest.approx((0.01, 0.02)), "no hot swap gains nothing"
    expected = Estimate.over_seeds([0.10, 0.16])
    assert (both.whole.mean, both.whole.low) == pytest.approx((expected.mean, expected.low))
    assert (others.whole, others.after) == (gate.whole, gate.after)
    assert [gain.over for gain in gains(every, "20")] == [GATE]


def test_video_without_objects_is_left_out():
    empty = [Row(YARD, 1, "real", way, None, None, 1.0) for way in (ADAPTED, FROZEN)]
    assert [gain.over for gain in gains([*rows(STREET, 1, 0.1, 0.1), *empty], "real")] == [STREET]


def test_videos_that_lose_more_than_two_points_are_named():
    every = [*rows(STREET, 1, 0.2, -0.03), *rows(GATE, 1, -0.019, 0.0), *rows(YARD, 1, -0.021, 0.1)]
    assert lower(list(gains(every, "real")), {STREET, GATE, YARD}) == [STREET, YARD]
