"""Handles of objects: in this process, and of Ray actors."""

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from ray.exceptions import RayActorError, RayTaskError
from waiting import HANG_GUARD_S

from ekya.core.errors import UserError
from ekya.fleet.run.calls import CallError, LocalHandle, RayHandle


class Counter:
    def __init__(self):
        self.order, self.go_on = [], threading.Event()

    def add(self, number):
        if number == 0:
            self.go_on.wait(HANG_GUARD_S)
        self.order.append(number)
        return number + 1

    def complain(self):
        raise UserError("correct this")

    def fail(self):
        raise ValueError("a bug")


def test_calls_of_one_thread_run_in_order_and_return_at_once() -> None:
    counter = Counter()
    handle = LocalHandle(counter, threads=1)
    told = [handle.call("add", number) for number in range(3)]
    assert not any(one.done() for one in told)
    counter.go_on.set()
    assert [one.result(HANG_GUARD_S) for one in told] == [1, 2, 3]
    assert counter.order == [0, 1, 2]


def test_errors_of_the_user_are_told_from_others() -> None:
    handle = LocalHandle(Counter(), threads=1)
    with pytest.raises(UserError, match="correct this"):
        handle.call("complain").result(HANG_GUARD_S)
    with pytest.raises(CallError, match="ValueError: a bug"):
        handle.call("fail").result(HANG_GUARD_S)


def test_an_object_that_has_ended_is_dead_to_who_waits_and_to_who_comes() -> None:
    counter = Counter()
    handle = LocalHandle(counter, threads=1)
    works, waits = handle.call("add", 0), handle.call("add", 1)
    handle.end_process()
    with pytest.raises(CallError, match="it has ended"):
        waits.result(HANG_GUARD_S)
    with pytest.raises(CallError, match="it has ended"):
        handle.call("add", 2).result(HANG_GUARD_S)
    counter.go_on.set()
    assert works.result(HANG_GUARD_S) == 1
    assert counter.order == [0]


def test_a_bug_of_which_nobody_waits_to_hear_is_in_the_log(caplog) -> None:
    LocalHandle(Counter(), threads=1).call("fail").exception(5)
    assert "fail of Counter fails" in caplog.text
    assert "Traceback" in caplog.text


class Reference:
    def __init__(self):
        self.answer = Future()

    def future(self):
        return self.answer


def of_actor(reference):
    return RayHandle(SimpleNamespace(work=SimpleNamespace(remote=lambda *_: reference)))


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (RayActorError(), CallError, "error before finishing"),
        (RayTaskError("work", "trace", UserError("correct this")), UserError, "^correct this$"),
        (RayTaskError("work", "trace", ValueError("a bug")), CallError, "^ValueError: a bug$"),
        (OSError("no memory"), CallError, "OSError: no memory"),
    ],
)
def test_errors_of_ray_are_one_line(raised, kind, words) -> None:
    reference = Reference()
    told = of_actor(reference).call("work", 1)
    reference.answer.set_exception(raised)
    with pytest.raises(kind, match=words):
        told.result(0)


def test_a_result_of_ray_is_passed_on_also_to_nobody() -> None:
    reference = Reference()
    told = of_actor(reference).call("work")
    reference.answer.set_result(4)
    assert told.result(0) == 4
    cancelled = Reference()
    of_actor(cancelled).call("work").cancel()
    cancelled.answer.set_result(4)
