"""Late gradients: which may move the weights, and their effect. Without threads: every run is the same."""

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from crews import EAST, GAMMA, WEST, in_turn, parted, task_of, updates_of
from hypothesis import given
from hypothesis import strategies as st

from ekya.fleet.policy.assignment import NodePart
from ekya.fleet.policy.places import NodeName
from ekya.fleet.run.training.gate import Gate, together, within
from ekya.fleet.run.training.material import Push
from ekya.fleet.run.training.workers import WorkerId
from ekya.models.training.optimizer import SgdRecipe

LARGE = SgdRecipe(learning_rate=0.02, head_learning_rate=0.06)
"""Four times the recipe's rates, at which workers without look-ahead weights learn nothing that lasts."""

THREE = parted(NodePart(EAST, workers=1, chunks=1), NodePart(WEST, workers=2, chunks=2))


def late(model, **options):
    return task_of(model, "asynchronous", **options)


def a_push(size, last=False):
    gradient = np.random.default_rng(5).normal(0, 0.01, size).astype(np.float32)
    return Push(gradient, 1.0, 8, GAMMA.batch_size, last)


def test_a_worker_is_given_the_weights_where_momentum_has_them_after_a_step_of_each_other(model):
    given = {}
    for foresees in (False, True):
        updates, workers = updates_of(late(model, foresees=foresees), THREE)
        updates.begin_epoch(tuple(workers))
        first, second, third = workers
        start = updates.pull_weights(first)
        assert np.array_equal(updates.pull_weights(second), start), (
            "before the first step there is no momentum"
        )
        updates.pull_weights(third)
        updates.push_gradient(first, a_push(start.size))
        ahead_of_two = updates.pull_weights(first)
        updates.push_gradient(second, a_push(start.size, last=True))
        updates.push_gradient(first, a_push(start.size))
        ahead_of_one = updates.pull_weights(first)
        updates.push_gradient(third, a_push(start.size, last=True))
        updates.push_gradient(first, a_push(start.size))
        given[foresees] = start, ahead_of_two, ahead_of_one, updates.pull_weights(first)
    start, after_one, _, at_the_end = given[False]
    momentum = late(model).recipe.momentum
    # The first step is -η v, so every multiple of v is a multiple of this step.
    expected = after_one + (momentum + momentum**2) * (after_one - start)
    assert given[True][1] == pytest.approx(expected, abs=1e-6)
    assert np.abs(after_one - start).max() > 1e-3
    assert not np.allclose(given[True][2], given[False][2], atol=1e-3), "one other is still at work"
    assert np.array_equal(given[True][3], at_the_end), "nobody else moves them any more"


def test_together_nobody_is_late_and_the_weights_are_given_as_they_are(model):
    given = []
    for foresees in (False, True):
        updates, workers = updates_of(task_of(model, foresees=foresees), THREE)
        updates.begin_epoch(tuple(workers))
        for worker in workers:
            start = updates.pull_weights(worker)
        for worker in workers:
            updates.push_gradient(worker, a_push(start.size))
        given.append(updates.pull_weights(next(iter(workers))))
    assert np.array_equal(*given)
    assert not np.array_equal(given[0], start)


def test_who_takes_over_from_a_snapshot_foresees_the_same(model):
    task = late(model, foresees=True)
    updates, workers = updates_of(task, THREE)
    _, snapshot = in_turn(updates, workers, 0)
    other, _ = updates_of(task, THREE)
    other.restore_snapshot(snapshot)
    given = []
    for one in (updates, other):
        one.begin_epoch(tuple(workers))
        given.append(one.pull_weights(next(iter(workers))))
    assert np.array_equal(*given)
    plain, _ = updates_of(replace(task, foresees=False), THREE)
    plain.restore_snapshot(snapshot)
    plain.begin_epoch(tuple(workers))
    assert not np.allclose(plain.pull_weights(next(iter(workers))), given[0], atol=1e-3)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_gradients_that_are_two_updates_late_bear_rates_at_which_they_led_astray(model, seed):
    config = replace(GAMMA, epochs=8)
    accuracies = {}
    for foresees in (False, True):
        task = late(model, config=config, recipe=LARGE, seed=seed, foresees=foresees)
        updates, workers = updates_of(task, THREE)
        results = [in_turn(updates, workers, epoch)[0] for epoch in range(config.epochs)]
        assert updates.gate.stalest == 2
        accuracies[foresees] = [result.validation_accuracy for result in results]
    assert min(accuracies[True][4:]) >= 0.95
    assert fmean(accuracies[False][4:]) <= 0.85


def test_a_snapshot_is_made_of_an_epoch_that_is_more_accurate_than_that_and_no_other(model):
    for above, kept in ((-1.0, True), (1.0, False)):
        updates, workers = updates_of(task_of(model), parted(NodePart(EAST)))
        updates.begin_epoch(tuple(workers))
        for me, worker in workers.items():
            steps = worker.steps(0)
            for place, step in enumerate(steps, 1):
                updates.push_gradient(
                    me, worker.push_of(updates.pull_weights(me), step, last=place == len(steps))
                )
        result, snapshot = updates.end_epoch(above)
        assert (snapshot is not None, 0.0 <= result.validation_accuracy <= 1.0) == (kept, True)


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
        return [("pull_weights", worker) for worker in sorted(self.away)] + [
            ("push_gradient", worker) for worker in sorted(self.working)
        ]

    def run(self):
        while moves := self.moves():
            what, worker = moves[self.draw(st.integers(0, len(moves) - 1))]
            if what == "pull_weights":
                self.gate.note_pull(worker)
                self.away.remove(worker)
                self.working[worker] = self.gate.version
            else:
                self.gate.note_push(worker)
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
    gate.note_pull(slow)
    for _ in range(3):
        gate.note_pull(fast)
        gate.note_push(fast)
        assert gate.next_update() == (fast,)
    gate.note_pull(fast)
    gate.note_push(fast)
    assert gate.next_update() == ()
    gate.note_push(slow)
    assert gate.next_update() == (slow,)
    assert gate.next_update() == (fast,)
    assert gate.stalest == 3


def test_who_is_not_away_cannot_leave():
    (worker,) = crew(1)
    gate = Gate([worker], together)
    gate.note_pull(worker)
    with pytest.raises(KeyError):
        gate.remove_worker(worker)
