"""Handover of shares: no job gets a share that another job may still use, however late answers are."""

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ekya.control.share_ledger import Overdue, ShareLedger, Timeouts
from ekya.core.shares import Work, inference_holder, preparation_holder, retraining_holder
from ekya.core.units import JobId, StreamId

A, B = StreamId("a"), StreamId("b")
JOB_1, JOB_2 = JobId(1), JobId(2)
PATIENCE = Timeouts(100, {Work.INFERENCE: 1000, Work.RETRAINING: 1000, Work.PREPARATION: 3000})


def one_pool(capacity_milli=1000, step_milli=1):
    return ShareLedger((capacity_milli,), lambda holder: 0, PATIENCE, step_milli)


def asked(orders):
    return [(order.holder, order.share_milli) for order in orders]


def holding(ledger, **shares_milli):
    """Returns the ledger, in which these inference jobs now hold their shares."""
    for name, share_milli in shares_milli.items():
        ledger.set_target(inference_holder(StreamId(name)), share_milli, 1, 0)
    return ledger


def test_free_share_is_granted_immediately():
    ledger = one_pool()
    assert asked(ledger.set_target(inference_holder(A), 400, 1, 0)) == [(inference_holder(A), 400)]
    assert asked(ledger.set_target(retraining_holder(A, JOB_1), 600, 1, 0)) == [
        (retraining_holder(A, JOB_1), 600)
    ]
    assert ledger.free_milli(0) == 0


def test_grower_waits_for_shrinkers_confirmation():
    ledger = holding(one_pool(), a=800, b=200)
    (shrink,) = ledger.set_target(inference_holder(A), 300, 2, 10)
    assert ledger.set_target(inference_holder(B), 700, 2, 10) == []
    assert ledger.held_milli(inference_holder(A)) == 800
    assert asked(ledger.confirm_command(shrink, 30)) == [(inference_holder(B), 700)]
    assert ledger.next_due_us(30) is None


def test_fitting_holder_waits_for_nobody():
    ledger = holding(one_pool(), a=600, b=200)
    ledger.set_target(inference_holder(A), 300, 2, 10)
    assert asked(ledger.set_target(inference_holder(B), 400, 2, 10)) == [(inference_holder(B), 400)]


def test_pools_do_not_wait_for_each_other():
    ledger = ShareLedger((1000, 1000), lambda holder: int(holder.stream == B), PATIENCE)
    holding(ledger, a=1000, b=500)
    ledger.set_target(inference_holder(A), 100, 2, 10)
    assert asked(ledger.set_target(inference_holder(B), 1000, 2, 10)) == [(inference_holder(B), 1000)]


def test_growers_after_timeout_get_free_share_then_rest():
    ledger = holding(one_pool(step_milli=100), a=750, b=100)
    (shrink,) = ledger.set_target(inference_holder(A), 200, 2, 0)
    assert ledger.set_target(inference_holder(B), 800, 2, 0) == []
    assert ledger.next_due_us(0) == 100
    assert ledger.pass_time(99) == ([], [])
    overdue, orders = ledger.pass_time(100)
    assert (overdue, asked(orders)) == ([], [(inference_holder(B), 200)])
    assert asked(ledger.confirm_command(shrink, 150)) == [(inference_holder(B), 800)]


def test_smaller_pool_lets_nobody_grow_until_enough_has_shrunk():
    ledger = holding(one_pool(), a=600, b=300)
    assert ledger.resize_pool(0, 700, 5) == []
    assert ledger.free_milli(0) == -200
    (first,) = ledger.set_target(inference_holder(A), 200, 2, 10)
    assert ledger.set_target(inference_holder(B), 400, 2, 10) == []
    ledger.pass_time(110)
    assert ledger.held_milli(inference_holder(B)) == 300
    assert asked(ledger.confirm_command(first, 120)) == [(inference_holder(B), 400)]


def test_larger_pool_lets_those_grow_that_wait():
    ledger = holding(one_pool(400), a=300)
    assert ledger.set_target(inference_holder(B), 500, 2, 10) == [
        ledger._holders[inference_holder(B)].command
    ]
    assert asked(ledger.resize_pool(0, 1000, 20)) == [(inference_holder(B), 500)]


def test_overdue_holder_is_reported_once_and_counts():
    ledger = holding(one_pool(), a=1000)
    ledger.set_target(inference_holder(A), 200, 2, 0)
    ledger.set_target(inference_holder(B), 800, 2, 0)
    ledger.pass_time(100)
    assert ledger.next_due_us(100) == 1000
    assert ledger.pass_time(1000) == ([Overdue(inference_holder(A), 2, 1000)], [])
    assert ledger.pass_time(2000) == ([], [])
    assert ledger.next_due_us(2000) is None
    assert asked(ledger.remove_dead_holders([inference_holder(A)], 2100)) == [(inference_holder(B), 800)]


def test_new_plan_does_not_extend_timeout():
    ledger = holding(one_pool(), a=1000)
    ledger.set_target(inference_holder(A), 600, 2, 0)
    ledger.set_target(inference_holder(A), 300, 3, 900)
    assert ledger.pass_time(1000)[0] == [Overdue(inference_holder(A), 3, 1000)]


def test_late_reply_to_superseded_command_is_ignored():
    ledger = holding(one_pool(), a=1000)
    (first,) = ledger.set_target(inference_holder(A), 600, 2, 0)
    (second,) = ledger.set_target(inference_holder(A), 300, 3, 10)
    assert (first.epoch, second.epoch) == (2, 3)
    ledger.set_target(inference_holder(B), 400, 3, 10)
    assert ledger.confirm_command(first, 20) == []
    assert ledger.held_milli(inference_holder(A)) == 1000
    assert asked(ledger.confirm_command(second, 30)) == [(inference_holder(B), 400)]


def test_revoked_shrink_sends_new_command():
    ledger = holding(one_pool(), a=800)
    (shrink,) = ledger.set_target(inference_holder(A), 300, 2, 0)
    (keep,) = ledger.set_target(inference_holder(A), 800, 3, 10)
    assert (keep.share_milli, keep.serial > shrink.serial) == (800, True)
    assert ledger.confirm_command(shrink, 20) == []
    assert ledger.held_milli(inference_holder(A)) == 800
    assert ledger.pass_time(5000) == ([], [])


def test_inference_with_same_share_gets_command_for_config():
    ledger = holding(one_pool(), a=800)
    (again,) = ledger.set_target(inference_holder(A), 800, 2, 0)
    assert (again.share_milli, again.changes) == (800, False)


def test_ended_retraining_frees_share_on_reply():
    ledger = holding(one_pool(), a=400)
    ledger.set_target(retraining_holder(A, JOB_1), 600, 2, 0)
    (end,) = ledger.release_holder(retraining_holder(A, JOB_1), 10)
    assert (end.share_milli, end.leaves) == (0, True)
    assert ledger.release_holder(retraining_holder(A, JOB_1), 20) == []
    assert ledger.set_target(retraining_holder(B, JOB_2), 600, 3, 20) == []
    assert asked(ledger.confirm_command(end, 30)) == [(retraining_holder(B, JOB_2), 600)]
    assert retraining_holder(A, JOB_1) not in ledger.holders


def test_paused_retraining_gets_command_to_end():
    ledger = one_pool()
    ledger.set_target(retraining_holder(A, JOB_1), 600, 1, 0)
    (pause,) = ledger.set_target(retraining_holder(A, JOB_1), 0, 2, 10)
    ledger.confirm_command(pause, 20)
    (end,) = ledger.release_holder(retraining_holder(A, JOB_1), 30)
    assert end.leaves


def test_waiting_job_without_command_is_removed():
    ledger = holding(one_pool(), a=1000)
    ledger.set_target(inference_holder(A), 200, 2, 0)
    assert ledger.set_target(preparation_holder(1), 500, 2, 0) == []
    assert ledger.set_target(preparation_holder(1), 0, 3, 0) == []
    assert ledger.release_holder(preparation_holder(1), 10) == []
    assert preparation_holder(1) not in ledger.holders


def test_unknown_holder_has_no_effect():
    ledger = one_pool()
    assert ledger.release_holder(preparation_holder(1), 10) == []
    assert ledger.remove_dead_holders([inference_holder(A)], 10) == []


class Job:
    """A process: a running batch keeps the share at which it began."""

    def __init__(self):
        self.serial, self.share_milli, self.batch_milli = 0, 0, 0
        self.owes = None

    @property
    def used_milli(self):
        return max(self.share_milli, self.batch_milli)

    def hear(self, order):
        if order.serial > self.serial:
            self.serial, self.share_milli, self.owes = order.serial, order.share_milli, order


HOLDERS = (
    inference_holder(A),
    retraining_holder(A, JOB_1),
    preparation_holder(1),
    inference_holder(B),
    retraining_holder(B, JOB_2),
)
POOLS_MILLI = (1000, 500)
places = st.integers(0, 20)


def pool_of(holder):
    return int(holder.stream == B)


class Shares(RuleBasedStateMachine):
    """Orders and answers that are late, reordered or lost, jobs that hang or die, and plans in between."""

    def __init__(self):
        super().__init__()
        self.ledger = ShareLedger(POOLS_MILLI, pool_of, PATIENCE, step_milli=10)
        self.now_us = self.epoch = self.serial = 0
        self.jobs, self.wanted, self.over = {}, {}, set()
        self.orders, self.answers, self.doomed, self.ends = [], [], [], []

    def send(self, orders):
        for order in orders:
            assert order.serial > self.serial
            self.serial = order.serial
            if order.holder not in self.ends:
                self.jobs.setdefault(order.holder, Job())
                self.orders.append(order)

    @rule(parts=st.lists(st.sampled_from([0, 20, 50, 80]), min_size=5, max_size=5), turned=st.booleans())
    def plan(self, parts, turned):
        self.epoch += 1
        left = list(POOLS_MILLI)
        wants = {}
        for holder, part in zip(HOLDERS, parts, strict=True):
            wants[holder] = min(10 * part, left[pool_of(holder)])
            left[pool_of(holder)] -= wants[holder]
        for holder in reversed(wants) if turned else wants:
            if holder not in self.ends and holder not in self.over:
                self.wanted[holder] = wants[holder]
                self.send(self.ledger.set_target(holder, wants[holder], self.epoch, self.now_us))

    @precondition(lambda self: len(self.over) < 2)
    @rule(holder=st.sampled_from([HOLDERS[1], HOLDERS[2], HOLDERS[4]]))
    def finish(self, holder):
        if holder in self.wanted and holder not in self.ends:
            self.over.add(holder)
            del self.wanted[holder]
            self.send(self.ledger.release_holder(holder, self.now_us))

    @precondition(lambda self: self.orders)
    @rule(place=places)
    def deliver(self, place):
        order = self.orders.pop(place % len(self.orders))
        self.jobs[order.holder].hear(order)

    @precondition(lambda self: self.jobs)
    @rule(place=places, goes_on=st.booleans())
    def end_batch(self, place, goes_on):
        """Ends a batch. The next may begin immediately; an executed order is answered at the boundary."""
        job = list(self.jobs.values())[place % len(self.jobs)]
        job.batch_milli = 0
        if job.owes is not None:
            self.answers.append(job.owes)
            job.owes = None
        if goes_on:
            job.batch_milli = job.share_milli

    @precondition(lambda self: self.answers)
    @rule(place=places)
    def hear_answer(self, place):
        order = self.answers.pop(place % len(self.answers))
        self.send(self.ledger.confirm_command(order, self.now_us))

    @rule(passed_us=st.sampled_from([10, 100, 1000, 3000]))
    def pass_time(self, passed_us):
        self.now_us += passed_us
        overdue, orders = self.ledger.pass_time(self.now_us)
        self.send(orders)
        for one in overdue:
            assert one.waited_us >= 1000
            self.doomed.append(one.holder)

    @precondition(lambda self: self.doomed)
    @rule(place=places)
    def kill(self, place):
        self.end(self.doomed.pop(place % len(self.doomed)))

    @precondition(lambda self: self.epoch > 3 and self.jobs)
    @rule(place=places)
    def die(self, place):
        self.end(list(self.jobs)[place % len(self.jobs)])

    def end(self, holder):
        """Ends a process; the end is reported later, and orders on their way to it are lost."""
        if self.jobs.pop(holder, None) is not None:
            self.ends.append(holder)
            self.orders = [order for order in self.orders if order.holder != holder]

    @precondition(lambda self: self.ends)
    @rule(place=places)
    def hear_of_end(self, place):
        holder = self.ends.pop(place % len(self.ends))
        self.wanted.pop(holder, None)
        self.send(self.ledger.remove_dead_holders([holder], self.now_us))

    @invariant()
    def nobody_uses_what_another_may_be_using(self):
        for holder, job in self.jobs.items():
            assert job.used_milli <= self.ledger.held_milli(holder)
        for pool, capacity_milli in enumerate(POOLS_MILLI):
            used = sum(job.used_milli for holder, job in self.jobs.items() if pool_of(holder) == pool)
            assert used <= capacity_milli
            assert self.ledger.free_milli(pool) >= 0

    def teardown(self):
        """Once all jobs have answered or are gone, each has the share that the last plan gave it."""
        for _ in range(10):
            for act, waiting in (
                (self.kill, lambda: self.doomed),
                (self.deliver, lambda: self.orders),
                (self.end_all_batches, lambda: self.jobs),
                (self.hear_answer, lambda: self.answers),
                (self.hear_of_end, lambda: self.ends),
            ):
                for _ in range(len(waiting())):
                    if waiting():
                        act(0)
        self.nobody_uses_what_another_may_be_using()
        assert self.ledger.next_due_us(self.now_us) is None
        for holder, wanted in self.wanted.items():
            assert self.ledger.held_milli(holder) == wanted
            assert wanted == (self.jobs[holder].share_milli if holder in self.jobs else 0)
        assert not self.over & set(self.ledger.holders)

    def end_all_batches(self, _):
        for place in range(len(self.jobs)):
            self.end_batch(place, goes_on=False)


Shares.TestCase.settings = settings(
    # Shrinking a run of this state machine takes minutes.
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
)
TestEveryInterleaving = Shares.TestCase
