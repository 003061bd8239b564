"""Tests that an actor's errors about its input reach the user as one sentence."""

import logging

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from ekya.config.fleet_file import FleetConfig
from ekya.core import events as ev
from ekya.core.errors import FullDiskError, UserError
from ekya.core.units import StreamId
from ekya.runtime.actors.actor_messages import (
    in_words,
    received_warning,
    reporting_user_errors,
    unwrapping_user_error,
)

SENTENCE = "golden.onnx: is not an ONNX file; name another"


class Worker:
    """Actor class whose constructor can fail."""

    def __init__(self, fine):
        if not fine:
            raise UserError(SENTENCE)

    def ready(self):
        return "ready"

    def poll(self, timeout_s):
        return [ev.StreamBack(1, StreamId("cam-1"))]


def test_methods_after_a_failed_constructor_raise_its_user_error():
    complaining_worker = reporting_user_errors(Worker, "inference/cam-1")
    assert complaining_worker.__name__ == "Worker"
    wrong = complaining_worker(False)
    for ask in (wrong.ready, lambda: wrong.poll(0.0)):
        with pytest.raises(UserError, match=SENTENCE):
            ask()
    fine = complaining_worker(True)
    assert fine.ready() == "ready"


def test_poll_returns_each_warning_of_the_process_once():
    worker = reporting_user_errors(Worker, "inference/cam-1")(True)
    log = logging.getLogger("ekya.somewhere")
    log.info("nothing to worry about")
    for _ in range(3):
        log.warning("memory is\nshort")
    try:
        raise OSError("no\nspace")
    except OSError:
        log.exception("a step failed")
    events, again = worker.poll(0.0), worker.poll(0.0)
    assert events[0] == ev.StreamBack(1, StreamId("cam-1"))
    assert {event.source for event in events[1:]} == {"inference/cam-1"}
    assert [event.text for event in events[1:]] == ["memory is short", "a step failed (OSError: no space)"]
    assert len(again) == 1


def test_received_warning_holds_no_password(monkeypatch):
    monkeypatch.setenv("CAM_PASSWORD", "hunter2secret")
    camera = {"kind": "camera", "url": "rtsp://admin:${CAM_PASSWORD}@10.0.0.5/live"}
    fleet = FleetConfig.model_validate(
        {
            "gpus": 1,
            "window_s": 20,
            "classes": ["car"],
            "golden": {"model": "fasterrcnn_mobilenet_v3_large_320_fpn"},
            "streams": [{"id": "cam-1", "source": camera}],
        }
    )
    said = "cannot open rtsp://admin:other@10.0.0.5/live: hunter2secret was refused"
    warned = received_warning(ev.Warned(0, "inference/cam-1", said), 7, fleet)
    assert (warned.t_us, warned.source) == (7, "inference/cam-1")
    assert "hunter2secret" not in warned.text
    assert "other" not in warned.text


@pytest.mark.parametrize("kind", [UserError, FullDiskError])
def test_unwrapping_returns_the_user_error_alone(kind):
    def ask(error):
        def asked():
            raise error

        return unwrapping_user_error(asked)

    with pytest.raises(UserError) as caught:
        ask(RayTaskError("ready", "Traceback: a page of it", kind(SENTENCE)).as_instanceof_cause())
    assert (caught.type, str(caught.value)) == (kind, SENTENCE)
    with pytest.raises(RayTaskError):
        ask(RayTaskError("ready", "Traceback: a page of it", ValueError("a fault")).as_instanceof_cause())
    with pytest.raises(ActorDiedError):
        ask(ActorDiedError())
    assert unwrapping_user_error(lambda: 3) == 3


def test_in_words_of_a_failed_constructor_is_its_error():
    failed = ActorDiedError(
        RayTaskError("__init__", "Traceback:\n  a page of it\nOSError: no space", OSError())
    )
    assert in_words(failed) == "OSError: no space"
    assert in_words(ActorDiedError()) == "The actor died unexpectedly before finishing this task."
