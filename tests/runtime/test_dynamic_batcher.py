"""Tests of gathering concurrent requests of threads in one call: each thread receives its own reply."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest

from ekya.runtime.dynamic_batcher import DynamicBatcher


class Doubling:
    """Doubles numbers once ``may`` is set; records the requests of each call."""

    def __init__(self):
        self.calls = []
        self.may = threading.Event()
        self.may.set()

    def __call__(self, asked):
        self.calls.append(sorted(asked))
        assert self.may.wait(5)
        return [2 * number for number in asked]


def wait_for(condition):
    deadline_s = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(0.001)


def test_one_that_asks_alone_is_answered_at_once():
    doubling = Doubling()
    gathering = DynamicBatcher(nullcontext, doubling)
    assert [gathering.ask(lambda number=number: number) for number in range(3)] == [0, 2, 4]
    assert doubling.calls == [[0], [1], [2]]


def test_those_that_come_during_a_call_share_the_next_one():
    doubling = Doubling()
    doubling.may.clear()
    gathering = DynamicBatcher(nullcontext, doubling)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(gathering.ask, lambda: 0)]
        wait_for(lambda: doubling.calls)
        answers += [pool.submit(gathering.ask, lambda number=number: number) for number in (1, 2, 3)]
        wait_for(lambda: len(gathering._waiting) == 3)
        doubling.may.set()
        assert [answer.result(5) for answer in answers] == [0, 2, 4, 6]
    assert doubling.calls == [[0], [1, 2, 3]]


def test_those_that_come_while_the_call_waits_for_its_turn_come_along():
    doubling, turn = Doubling(), threading.Event()

    @contextmanager
    def scope():
        assert turn.wait(5)
        yield

    gathering = DynamicBatcher(scope, doubling)
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(gathering.ask, lambda number=number: number) for number in range(3)]
        wait_for(lambda: len(gathering._waiting) == 3)
        turn.set()
        assert [answer.result(5) for answer in answers] == [0, 2, 4]
    assert doubling.calls == [[0, 1, 2]]


def test_only_who_makes_the_call_waits_for_what_the_share_is_owed():
    """The scope of a token bucket ends when the debt is paid; the other threads have their replies before."""
    doubling, turn, paid = Doubling(), threading.Event(), threading.Event()

    @contextmanager
    def scope():
        assert turn.wait(5)
        yield
        assert paid.wait(5)

    gathering = DynamicBatcher(scope, doubling)
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(gathering.ask, lambda: 1)
        wait_for(lambda: gathering._is_called)
        follower = pool.submit(gathering.ask, lambda: 2)
        wait_for(lambda: len(gathering._waiting) == 2)
        turn.set()
        assert follower.result(5) == 4
        assert not leader.done()
        paid.set()
        assert leader.result(5) == 2


def test_a_question_is_made_up_when_the_call_begins():
    """A request uses weights that arrived while its frame waited for the call."""
    turn, newest = threading.Event(), [1]

    @contextmanager
    def scope():
        assert turn.wait(5)
        yield

    gathering = DynamicBatcher(scope, Doubling())
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(gathering.ask, lambda: newest[0])
        wait_for(lambda: gathering._waiting)
        newest[0] = 21
        turn.set()
        assert answer.result(5) == 42


def raising():
    raise KeyError("no such question")


def unhappy(asked):
    if 13 in asked:
        raise ValueError("thirteen")
    return asked


@pytest.mark.parametrize(("question", "error"), [(raising, KeyError), (lambda: 13, ValueError)])
def test_an_error_is_heard_by_who_caused_it_and_by_nobody_else(question, error):
    turn = threading.Event()

    @contextmanager
    def scope():
        assert turn.wait(5)
        yield

    gathering = DynamicBatcher(scope, unhappy)
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(gathering.ask, lambda number=number: number) for number in range(3)]
        guilty = pool.submit(gathering.ask, question)
        wait_for(lambda: len(gathering._waiting) == 4)
        turn.set()
        assert [other.result(5) for other in others] == [0, 1, 2]
        with pytest.raises(error):
            guilty.result(5)
    assert gathering.ask(lambda: 5) == 5


def test_a_turn_that_fails_is_the_callers_and_the_next_one_makes_the_call():
    turn, tries = threading.Event(), []

    @contextmanager
    def scope():
        assert turn.wait(5)
        tries.append(None)
        if len(tries) == 1:
            raise RuntimeError("not on the level")
        yield

    gathering = DynamicBatcher(scope, Doubling())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(gathering.ask, lambda: 1)
        wait_for(lambda: gathering._is_called)
        second = pool.submit(gathering.ask, lambda: 2)
        wait_for(lambda: len(gathering._waiting) == 2)
        turn.set()
        assert second.result(5) == 4
        with pytest.raises(RuntimeError, match="not on the level"):
            first.result(5)
    assert not gathering._waiting


def test_many_threads_each_get_their_own_answers_and_calls_never_overlap():
    inside = []

    def answer(asked):
        inside.append(len(asked))
        assert len(inside) == 1
        time.sleep(0.0005)
        inside.clear()
        return [number * number for number in asked]

    gathering = DynamicBatcher(nullcontext, answer)

    def ask_often(owner):
        numbers = range(1000 * owner, 1000 * owner + 50)
        return [gathering.ask(lambda number=number: number) for number in numbers] == [n * n for n in numbers]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask_often, range(8)))
