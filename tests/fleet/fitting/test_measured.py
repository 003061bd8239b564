"""Models of machines that a user has profiled, and the file of their points."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ekya.core.errors import UserError
from ekya.fleet.fitting.boosted import EXEC
from ekya.fleet.fitting.points_file import (
    LEAST_POINTS,
    SCHEMA,
    add_points,
    fitted_to,
    measured_models,
    read_points,
    read_tried,
    write_points,
)
from ekya.fleet.papers.deep_edge.laws import NANO, TX2
from ekya.fleet.papers.deep_edge.workload import profile_points
from ekya.fleet.policy.deep_edge.estimates import EdgeTraining, EdgeWork, ProfilePoint, ProfileSetting
from ekya.fleet.policy.places import NodeState

STATE = NodeState(0.3, 0.0, 0.3)


def without_gpu(state):
    return replace(state, gpu=0.0)


def as_profiled(point):
    """Returns a point of a machine without a GPU as the Profiler writes it: without an update time."""
    return replace(point, update_s=0.0, before=without_gpu(point.before), after=without_gpu(point.after))


PROFILED = [as_profiled(point) for point in profile_points(NANO, 40)]
LIVED = [replace(point, after=NodeState(), app="", exec_s=0.0) for point in profile_points(NANO, 3, seed=5)]
"""Points as trainings write them: without state and application."""


def test_a_gpu_that_is_not_there_is_not_in_use_and_an_unknown_update_takes_no_time() -> None:
    models = measured_models(PROFILED, "a.parquet")
    worker = EdgeTraining(NANO, STATE, 16)
    assert models.estimates.state_after(worker).gpu == 0.0
    assert models.estimates.update_s([worker], STATE) == [0.0]
    assert {row.function for row in models.rows} == {
        "EstComputeTime",
        "EstState cpu",
        "EstState mem",
        "EstExecTime",
    }


def test_what_trainings_have_shown_is_learned_beside_what_was_profiled() -> None:
    models = measured_models([*PROFILED, *LIVED], "a.parquet")
    assert len(models.train) + len(models.tests[NANO]) == 43
    (update_s,) = models.estimates.update_s([EdgeTraining(NANO, STATE, 16)], STATE)
    shown = [point.update_s for point in LIVED]
    assert min(shown) <= update_s <= max(shown)
    assert not models.estimates.knows(NANO, EXEC, "moon")


def test_limits_are_the_batches_that_were_tried_and_the_errors_on_held_out_points() -> None:
    points = [replace(point, batch=8) for point in PROFILED[:20]] + [
        replace(point, batch=24) for point in PROFILED[20:]
    ]
    limits = measured_models(points, "a.parquet").limits
    assert (limits.batch_min, limits.batch_max) == (8, 24)
    assert limits.exec_error > 0


def test_too_few_points_are_refused_with_how_many_there_should_be() -> None:
    few = [as_profiled(point) for point in profile_points(TX2, LEAST_POINTS - 1)]
    sentence = f"a.parquet: {LEAST_POINTS - 1} points of a tx2 are too few .* until there are {LEAST_POINTS}"
    with pytest.raises(UserError, match=sentence):
        measured_models([*PROFILED, *few], "a.parquet")
    assert {*measured_models([*PROFILED, *few, few[0]], "a.parquet").tests} == {NANO, TX2}
    with pytest.raises(UserError, match="0 points of a nano are too few"):
        measured_models(LIVED, "a.parquet")
    with pytest.raises(UserError, match="holds no points"):
        measured_models([], "a.parquet")


def profile_file(path, *blocks):
    """Writes points of a Nano, profiled with each of these numbers of trained blocks."""
    for number in blocks:
        work = EdgeWork(NANO, "resnet18", 32, number)
        add_points(path, PROFILED, [ProfileSetting(work, 0.0, 0.0, point.batch, 1000) for point in PROFILED])
    return path


def test_a_file_of_the_profiler_becomes_models_of_what_was_profiled(tmp_path) -> None:
    fitted = fitted_to(profile_file(tmp_path / "nano.parquet", 2))
    assert fitted.blocks == {NANO: 2}
    assert fitted.estimates.compute_s(EdgeTraining(NANO, STATE, 16)) > 0


def test_two_trainings_of_one_kind_are_told_apart_by_nobody(tmp_path) -> None:
    with pytest.raises(UserError, match="two trainings were profiled on a nano; keep one in a file"):
        fitted_to(profile_file(tmp_path / "nano.parquet", 1, 2))


POINT = ProfilePoint(
    kind="arm",
    before=NodeState(0.1, 0.0, 0.25),
    batch=16,
    batches=(16, 8),
    parameter_server=NodeState(0.2, 0.3, 0.4),
    share_milli=500,
    compute_s=1 / 3,
    update_s=0.01,
    after=NodeState(0.9, 0.0, 0.5),
    app="inference",
    exec_s=0.05,
)
TRIED = ProfileSetting(EdgeWork("arm", "resnet18", 32, 1), 0.5, 0.25, 16, 500)


def test_points_written_are_read_unchanged(tmp_path):
    file = tmp_path / "points.parquet"
    write_points(file, [POINT], [TRIED])
    other = replace(POINT, app="", batches=())
    assert add_points(file, [other]) == 2
    assert read_points(file) == [POINT, other]
    assert read_tried(file) == [TRIED]


@pytest.mark.parametrize(
    ("row", "tried", "what"),
    [
        ({"kind": "arm", "batch": 16}, b"[]", "holds incomplete profile points"),
        (None, b'[{"cpu": 0.5}]', "its list of what was tried is damaged"),
        (None, b"[", "its list of what was tried is damaged"),
    ],
)
def test_points_damaged_file_is_refused(tmp_path, row, tried, what):
    file = tmp_path / "points.parquet"
    schema = SCHEMA.with_metadata({b"ekya.tried": tried})
    pq.write_table(pa.Table.from_pylist([row] if row else [], schema), file)
    with pytest.raises(UserError, match=f"points.parquet:? {what}"):
        (read_points if row else read_tried)(file)
