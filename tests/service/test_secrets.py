"""Secrets are told nowhere: an error that holds all of them, in every place that errors come to.

What a whole service writes, and the command lines of its processes, are looked through in
``test_live_service``.
"""

import io
import logging
import sys
import threading
from contextlib import suppress

import psutil
import pytest
from fake_service import FakeService
from http_asking import BEARER, serving

from ekya.config.answer_sinks import MqttSpec
from ekya.config.fleet_file import FleetConfig
from ekya.core.errors import UserError
from ekya.core.events import Warned
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.wall_clock import record_start
from ekya.runtime.actors.actor_messages import received_warning
from ekya.service.answers import publisher, registry
from ekya.service.answers.publisher import Publisher
from ekya.service.logs import log_file, logging_to_folder, secrets_hidden
from ekya.streams.ingest.process import SourceProcess

SECRETS = {"CAM_PASSWORD": "camera/pa55word", "MQTT_PASSWORD": "br0ker-word"}
URL = "rtsp://admin:${CAM_PASSWORD}@10.0.0.5/live"
BROKER = MqttSpec(host="10.0.0.2", user="ekya", password="${MQTT_PASSWORD}")
NAMED = f"{URL} {BROKER.model_dump_json()}"
REFUSED = f"10.0.0.2 refuses {SECRETS['MQTT_PASSWORD']}"
SAID = (
    f"rtsp://admin:{SECRETS['CAM_PASSWORD']}@10.0.0.5/live: no answer to {SECRETS['CAM_PASSWORD']}; {REFUSED}"
)
LOG = logging.getLogger("ekya.test")
DECODER = """
from typing import ClassVar
from pydantic import BaseModel
from ekya.core.errors import UserError
from ekya.streams.ingest.credentials import fill_in_variables

class BrokenSpec(BaseModel):
    live: ClassVar[bool] = True
    url: str
    of_user: bool

    def open(self, classes):
        raise (UserError if self.of_user else ValueError)(f"{fill_in_variables(self.url)}: no answer")
"""


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def stderr(monkeypatch):
    """The text log of a process, which in a test goes to a place of its own."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [handler])
    monkeypatch.setattr(sys, "stderr", said)
    return said


def failing(error):
    raise error


def in_json_log(folder, stderr, monkeypatch):
    with logging_to_folder(folder, lambda: (), lambda: NAMED):
        LOG.warning("%s", SAID)
        try:
            failing(ValueError(SAID))
        except ValueError:
            LOG.exception("it broke")
    return log_file(folder).read_text() + stderr.getvalue()


def in_log_on_a_full_disk(folder, stderr, monkeypatch):
    log_file(folder).parent.mkdir()
    log_file(folder).symlink_to("/dev/full")
    with logging_to_folder(folder, lambda: (), lambda: NAMED):
        LOG.warning("%s", SAID)
        LOG.warning("%d frames", SAID)
    return stderr.getvalue()


def in_thread_that_dies(folder, stderr, monkeypatch):
    with logging_to_folder(folder, lambda: (), lambda: NAMED):
        thread = threading.Thread(target=failing, args=(ValueError(SAID),))
        thread.start()
        thread.join()
    assert "Traceback" in stderr.getvalue()
    return log_file(folder).read_text() + stderr.getvalue()


def in_service_that_dies(folder, stderr, monkeypatch):
    with pytest.raises(SystemExit) as ended, secrets_hidden(lambda: NAMED):
        failing(RuntimeError(SAID))
    assert "Traceback" in stderr.getvalue()
    return f"{stderr.getvalue()} {ended.value!r} {ended.value.__cause__!r}"


def in_service_that_refuses(folder, stderr, monkeypatch):
    with pytest.raises(UserError) as refused, secrets_hidden(lambda: NAMED):
        failing(UserError(SAID))
    return str(refused.value)


def in_warning_of_an_actor(folder, stderr, monkeypatch):
    fleet = FleetConfig.model_validate(
        {
            "gpus": 1,
            "window_s": 20,
            "classes": ["car"],
            "golden": {},
            "streams": [{"id": "gate", "source": {"kind": "camera", "url": URL}}],
            "answers": [BROKER.model_dump()],
        }
    )
    return received_warning(Warned(0, "inference/gate", SAID), 7, fleet).text


def in_state_of_a_sink(folder, stderr, monkeypatch):
    class Sink:
        batch = 1

        def report_cameras(self, _cameras):
            raise OSError(REFUSED)

        def close(self):
            raise OSError(REFUSED)

    monkeypatch.setitem(registry.SINKS, "mqtt", lambda _spec, _folder: Sink())
    monkeypatch.setattr(publisher, "FIRST_DELAY_S", 0.01)
    run = RunFolder(folder)
    (folder / "predictions").mkdir()
    record_start(run, 0, 1)
    running = Publisher(run, [BROKER], ("car",), lambda: [])
    running.start()
    running.close()
    return f"{running.sink_states()} {stderr.getvalue()}"


def in_words_of_a_decoder(folder, stderr, monkeypatch):
    (folder / "broken_decoder_for_tests.py").write_text(DECODER)
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("broken_decoder_for_tests", None)
    told = ""
    for of_user in (False, True):
        spec = __import__("broken_decoder_for_tests").BrokenSpec(url=URL, of_user=of_user)
        with SourceProcess(spec, ()) as process:
            told += " ".join(word for child in psutil.Process().children() for word in child.cmdline())
            with suppress(UserError, RuntimeError):
                process.wait_open()
            assert process.died
            told += process.died
    assert "process_child" in told
    return told


def in_answer_of_the_api(folder, stderr, monkeypatch):
    service = FakeService()
    told = b""
    with serving(service, folder) as ask, secrets_hidden(lambda: NAMED):
        for service.broken in (UserError(SAID.partition(" to ")[0]), RuntimeError(SAID)):
            for path in ("/api/v1/status", "/healthz", "/metrics", "/api/v1/cameras/yard", "/nothing"):
                told += ask.get(path, BEARER).content
    return told.decode() + stderr.getvalue()


PLACES = (
    in_json_log,
    in_log_on_a_full_disk,
    in_thread_that_dies,
    in_service_that_dies,
    in_service_that_refuses,
    in_warning_of_an_actor,
    in_state_of_a_sink,
    in_words_of_a_decoder,
    in_answer_of_the_api,
)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_no_secret_is_told(place, tmp_path, stderr, monkeypatch):
    told = place(tmp_path, stderr, monkeypatch)
    assert "10.0.0." in told, "the error itself is told"
    for secret in (*SECRETS.values(), "pa55word"):
        assert secret not in told
