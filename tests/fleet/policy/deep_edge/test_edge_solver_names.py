"""Deep-Edge's solvers by name."""

from ekya.fleet.policy.deep_edge.solvers import SOLVERS, holds_back, of_measured_shares


def test_only_ours_holds_back_and_only_to_what_was_measured() -> None:
    assert [name for name, solver in SOLVERS.items() if holds_back(solver)] == ["deep-edge-joint"]
    joint, paper = SOLVERS["deep-edge-joint"], SOLVERS["deep-edge"]
    assert of_measured_shares(joint, {300, 1000, 600}).shares_milli == (1000, 600, 300)
    assert not holds_back(of_measured_shares(joint, {1000}))
    assert of_measured_shares(paper, {300}) is paper
