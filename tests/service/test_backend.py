"""What the service's backend says of changes that wait for a camera."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_service import CAMERAS, FakeService

from ekya.core.errors import UserError
from ekya.results.storage.run_folder import RunFolder
from ekya.service import backend as module
from ekya.service.backend import ServiceBackend

BEFORE = replace(CAMERAS[-1], id="gate", frames_analysed=100, model_version=4)
AFTER = replace(BEFORE, frames_analysed=103)
LOST = replace(BEFORE, state="lost", reason="no route to host")
PAUSED = replace(BEFORE, state="paused", reason="an operator has paused it")
ENDED = replace(BEFORE, state="ended", reason="the stream has ended", frames_analysed=0)
SILENT = replace(BEFORE, frames_analysed=0)
OVER = "gate has ended, since its recording is over; loop it (play.loop), or remove it"
TRIED = "it stays, and is tried again"


@pytest.fixture
def make_backend(tmp_path, monkeypatch):
    """Returns a backend whose camera is what it is told, look by look; the last stays."""

    def make(*looks):
        left = list(looks)

        def status(since_start):
            assert since_start, "a camera of the same name may have been there before"
            now = left.pop(0) if len(left) > 1 else left[0]
            return replace(FakeService().status(), cameras=() if now is None else (now,))

        monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(module, "with_stream", lambda fleet, values: SimpleNamespace(**values))
        control = SimpleNamespace(
            fleet=None,
            add_camera=lambda stream: None,
            pause_camera=lambda camera, paused: None,
            roll_back=lambda camera, version: None,
        )
        return ServiceBackend(
            control, SimpleNamespace(status=status), SimpleNamespace(), RunFolder(tmp_path), ("car",)
        )

    return make


def add(backend):
    return backend.add_camera({"id": "gate"})


def resume(backend):
    return backend.resume_camera("gate")


def roll_back(backend):
    return backend.roll_back("gate", 2)


def test_camera_that_has_ended_is_not_said_to_be_paused(make_backend):
    with pytest.raises(UserError, match="gate: it has ended, so there is nothing to pause"):
        make_backend(ENDED).pause_camera("gate")
    for state in (None, BEFORE, LOST):
        make_backend(state).pause_camera("gate")


@pytest.mark.parametrize(
    ("change", "looks", "said"),
    [
        (add, [None, None, SILENT, SILENT, AFTER], ""),
        (add, [None, SILENT, *[replace(LOST, frames_analysed=0)] * 3, AFTER], ""),
        (
            add,
            [None, ENDED],
            OVER,
        ),
        (add, [None, SILENT, replace(LOST, frames_analysed=0)], f"gate is lost (no route to host); {TRIED}"),
        (add, [None, SILENT], f"gate has not answered within 30 s; {TRIED}: see ekya ctl status"),
        (add, [None], f"gate has not answered within 30 s; {TRIED}: see ekya ctl status"),
        (resume, [PAUSED, PAUSED, BEFORE, AFTER], ""),
        (resume, [PAUSED, PAUSED, LOST], f"gate is lost (no route to host); {TRIED}"),
        (resume, [ENDED], OVER),
        (roll_back, [BEFORE, BEFORE, replace(BEFORE, model_version=5)], ""),
        (roll_back, [LOST, LOST, replace(LOST, model_version=5)], ""),
        (roll_back, [LOST], "gate is lost (no route to host); the model serves with its next frame"),
        (
            roll_back,
            [PAUSED],
            "gate is paused (an operator has paused it); the model serves with its next frame",
        ),
    ],
)
def test_change_is_done_when_the_camera_shows_it_or_says_why_not(make_backend, change, looks, said):
    assert change(make_backend(*looks)) == said
