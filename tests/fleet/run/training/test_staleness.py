import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.fleet.policy.places import NodeName
from ekya.fleet.run.training.gate import Gate, together, within
from ekya.fleet.run.training.workers import WorkerId


def crew(count):
    return [WorkerId(NodeName(f"n{place}"), 0) for place in range(count)]


class Play:
    """Workers with a number of pushes each, in a drawn order; a released worker pulls again when drawn."""

    def __init__(self, gate, workers, pushes, draw):
        self.gate, self.draw = gate, draw
        self.left = dict(zip(workers, pushes, strict=True))
        self.away, self.working, self.waiting = set(workers), {}, {}
        self.behind, self.groups = [], []

    def moves(self):
        for worker in [worker for worker in self.away if not self.left[worker]]:
            self.gate.remove_worker(worker)
            self.away.remove(worker)
            self.update()
        return [("pull", worker) for worker in sorted(self.away)] + [
            ("push", worker) for worker in sorted(self.working)
        ]

    def run(self):
        while moves := self.moves():
            what, worker = moves[self.draw(st.integers(0, len(moves) - 1))]
            if what == "pull":
                self.gate.pull(worker)
                self.away.remove(worker)
                self.working[worker] = self.gate.version
            else:
                self.gate.push(worker)
                self.waiting[worker] = self.working.pop(worker)
                self.update()
        return self

    def update(self):
        while group := self.gate.next_update():
            self.groups.append(group)
            for worker in group:
                self.behind.append(self.gate.version - 1 - self.waiting.pop(worker))
                self.left[worker] -= 1
                self.away.add(worker)


@given(st.data(), st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(0, 5))
def test_without_waiting_for_all_nobody_gets_further_behind_than_the_bound_and_nobody_waits_for_ever(
    data, pushes, staleness
):
    workers = crew(len(pushes))
    gate = Gate(workers, within(staleness, len(workers)))
    play = Play(gate, workers, pushes, data.draw).run()
    assert gate.over
    assert not any(play.left.values())
    assert max(play.behind, default=0) <= max(staleness, len(workers) - 1)
    assert gate.stalest == max(play.behind, default=0)
    assert gate.version == sum(pushes)


@given(st.data(), st.integers(1, 4), st.integers(1, 4))
def test_together_every_update_is_of_all_workers_and_of_the_newest_weights(data, count, pushes):
    workers = crew(count)
    play = Play(Gate(workers, together), workers, [pushes] * count, data.draw).run()
    assert play.groups == [tuple(workers)] * pushes
    assert set(play.behind) == {0}


def test_a_fast_worker_waits_only_when_a_slow_one_would_get_too_far_behind():
    fast, slow = crew(2)
    gate = Gate([fast, slow], within(3, 2))
    gate.pull(slow)
    for _ in range(3):
        gate.pull(fast)
        gate.push(fast)
        assert gate.next_update() == (fast,)
    gate.pull(fast)
    gate.push(fast)
    assert gate.next_update() == ()
    gate.push(slow)
    assert gate.next_update() == (slow,)
    assert gate.next_update() == (fast,)
    assert gate.stalest == 3


def test_who_is_not_away_cannot_leave():
    (worker,) = crew(1)
    gate = Gate([worker], together)
    gate.pull(worker)
    with pytest.raises(KeyError):
        gate.remove_worker(worker)
