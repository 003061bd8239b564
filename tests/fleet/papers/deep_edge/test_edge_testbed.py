"""Models of Deep-Edge's testbed, and the policies that use them."""

from ekya.fleet.fitting.boosted import split
from ekya.fleet.papers.deep_edge import testbed
from ekya.fleet.papers.deep_edge.laws import PI
from ekya.fleet.papers.deep_edge.testbed import judged_parameter_server
from ekya.fleet.papers.deep_edge.workload import POINTS, pi_points
from ekya.fleet.policy.deep_edge.heuristic import Heuristic


def test_deciders_fit_their_models_once_and_report_progress(monkeypatch) -> None:
    monkeypatch.setattr(testbed, "POINTS", dict.fromkeys(POINTS, 120))
    parts = []
    (policy,) = testbed.deciders(("deep-edge",), parts.append).values()
    assert parts == sorted(parts)
    assert (len(parts), parts[-1]) == (12, 1.0)
    assert policy.solver == Heuristic()
    assert 0 < policy.limits.exec_error < 0.5


def test_the_server_has_two_functions() -> None:
    rows = judged_parameter_server(*split(pi_points(80)))
    assert [(row.kind, row.function, row.test) for row in rows] == [
        (PI, "EstState cpu", 13),
        (PI, "EstState mem", 13),
    ]
    assert all(0 < row.mape < 15 for row in rows)
