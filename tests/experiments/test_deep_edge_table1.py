"""Deep-Edge's Table I: its rows, and the data points of the parameter server."""

from dataclasses import replace

import deep_edge_table1 as table

from ekya.fleet.papers.deep_edge.boosted import BoostedEstimates, Models, split
from ekya.fleet.papers.deep_edge.laws import NANO, PI, SERVER, TX2, WORKERS
from ekya.fleet.papers.deep_edge.workload import profile_points
from ekya.fleet.policy.deep_edge.estimates import EdgeLimits, EdgeTraining

TRAIN, TEST = split(profile_points(TX2, 300))


def rows_of(train, trees):
    models = Models(BoostedEstimates(train, trees), EdgeLimits(), tuple(train), {TX2: tuple(TEST)})
    return list(table.judge_workers(models))


def test_table_one_has_a_row_for_each_function() -> None:
    rows = {row.function: row for row in rows_of(TRAIN, 60)}
    assert [*rows] == [function for kind, function in table.OF_PAPER if kind == TX2]
    assert all((row.train, row.test) == (252, 48) for row in rows.values())
    assert all(0 < row.mape < 15 for row in rows.values())
    constant = rows_of([replace(point, compute_s=1.0) for point in TRAIN], 1)
    assert constant[0].mape > 100


def test_the_server_has_two_functions() -> None:
    points = table.server_points(80)
    assert {len(point.batches) for point in points} == {1, 2, 3, 4}
    rows = list(table.judge_server(*split(points)))
    assert [(row.kind, row.function, row.test) for row in rows] == [
        (PI, "EstState cpu", 13),
        (PI, "EstState mem", 13),
    ]
    assert all(0 < row.mape < 15 for row in rows)


def test_a_server_is_busier_with_more_workers() -> None:
    worker = EdgeTraining(NANO, WORKERS[NANO].rest, 16)
    one, three = (table.after_updates([worker] * count, SERVER.rest) for count in (1, 3))
    assert three.cpu > one.cpu
    assert three.mem > one.mem
