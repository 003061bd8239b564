"""Messages, and tests of all sinks without a broker, and of those that write files or post."""

import hashlib
import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import get_args

import pytest
from answering import CLASSES, Camera, a_message, a_service, row
from pydantic import TypeAdapter
from waiting import HANG_GUARD_S

from ekya.config.answer_sinks import AnySink
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.results.storage.hour_tables import HourWriter, next_rows
from ekya.results.storage.wall_clock import WallClock, record_start
from ekya.service.answers.jsonl_sink import JsonlSink
from ekya.service.answers.messages import NotDeliveredError, make_messages, newest_message, time_of
from ekya.service.answers.mqtt_sink import discovery_messages
from ekya.service.answers.registry import SINKS, make_sink

CAM = StreamId("cam.1")


def written(tmp_path, *rows):
    folder = a_service(tmp_path)
    writer = HourWriter(folder.hours(CAM))
    for one in rows:
        writer.add_row(one)
    writer.flush()
    return folder


def test_messages_are_of_frames_with_boxes_of_their_own(tmp_path):
    folder = written(
        tmp_path,
        row(0, classes=(1, 0)),
        row(1, analysed=False),
        row(2, analysed=False, followed=True),
        row(3, classes=()),
    )
    made = list(make_messages(CAM, next_rows(folder.hours(CAM), -1), CLASSES, WallClock.from_folder(folder)))
    assert [message["id"] for message in made] == ["cam.1/0", "cam.1/2", "cam.1/3"]
    box = [1.3, 2.0, 30.0, 40.0]
    assert made[0]["objects"] == [
        {"class": "person", "confidence": 0.6667, "box": box},
        {"class": "car", "confidence": 0.6667, "box": box},
    ]
    assert made[2]["objects"] == []
    assert json.loads(json.dumps(made[1])) == {
        "id": "cam.1/2",
        "camera": "cam.1",
        "frame": 2,
        "time": "2025-11-25T10:00:00.200Z",
        "model": 3,
        "objects": [{"class": "car", "confidence": 0.6667, "box": box}],
    }


def test_message_names_no_box_that_holds_no_object(tmp_path):
    folder = written(tmp_path, row(0, classes=(2, 0)))
    assert [one["class"] for one in newest_message(folder, CAM, CLASSES)["objects"]] == ["car"]


def test_unsure_boxes_are_told_only_to_who_wants_them_and_marked(tmp_path):
    folder = written(tmp_path, row(0, confidence=0.3), row(1))
    rows, clock = next_rows(folder.hours(CAM), -1), WallClock.from_folder(folder)

    def told(least):
        return [one["objects"] for one in make_messages(CAM, rows, CLASSES, clock, least)]

    assert told(0.5) == [[], told(0.29)[1]]
    assert told(0.29)[0] == [
        {"class": "car", "confidence": 0.3, "box": [1.3, 2.0, 30.0, 40.0], "unsure": True}
    ]
    assert told(0.31)[0] == []
    # A classifier only names boxes that are there.
    assert told(None)[0] == [{"class": "car", "confidence": 0.3, "box": [1.3, 2.0, 30.0, 40.0]}]
    assert newest_message(folder, CAM, CLASSES, 0.5)["frame"] == 1


def test_newest_message_is_the_last_with_boxes_of_its_own(tmp_path):
    folder = a_service(tmp_path)
    assert newest_message(folder, CAM, CLASSES) is None
    writer = HourWriter(folder.hours(CAM))
    for frame in range(3):
        writer.add_row(row(frame, analysed=frame < 2))
        writer.flush()
        assert newest_message(folder, CAM, CLASSES)["frame"] == min(frame, 1)


def test_message_time_leaves_out_when_the_service_was_down(tmp_path):
    folder = written(tmp_path, row(5))
    record_start(folder, 400_000, 1_764_100_000_000_000)
    assert newest_message(folder, CAM, CLASSES)["time"] == "2025-11-25T19:46:40.100Z"


def test_time_of_has_three_digits_after_the_second():
    assert time_of(1_764_064_800_000_000) == "2025-11-25T10:00:00.000Z"
    assert time_of(1_764_064_800_999_999) == "2025-11-25T10:00:00.999Z"


EXAMPLES = {
    "jsonl": {},
    "webhook": {"url": "http://${NAME}.invalid/", "secret": "${SECRET}", "timeout_s": 1},
    "mqtt": {"host": "127.0.0.1", "port": 1, "user": "me", "password": "${SECRET}"},
}
"""A section of each kind that reaches nothing outside this machine."""

READ_AS = TypeAdapter(AnySink)


def spec_of(kind, **keys):
    return READ_AS.validate_python({"kind": kind, **EXAMPLES[kind], **keys})


def test_every_kind_of_the_fleet_file_is_a_sink():
    kinds = {one.model_fields["kind"].default for one in get_args(get_args(AnySink)[0])}
    assert kinds == set(SINKS) == set(EXAMPLES)


@pytest.mark.parametrize("kind", sorted(SINKS))
def test_sink_without_its_secrets_names_the_variable(kind, tmp_path, monkeypatch):
    monkeypatch.delenv("SECRET", raising=False)
    monkeypatch.setenv("NAME", "host")
    folder = a_service(tmp_path)
    if kind == "jsonl":
        make_sink(spec_of(kind), folder)
        return
    with pytest.raises(UserError, match=f"SECRET is not set; set it to the .* of the answers called {kind}"):
        make_sink(spec_of(kind), folder)


@pytest.mark.parametrize("kind", ["webhook", "mqtt"])
def test_sink_that_reaches_nobody_says_so_each_time(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "tops3cret")
    monkeypatch.setenv("NAME", "nowhere")
    sink = make_sink(spec_of(kind), a_service(tmp_path))
    for _ in range(2):
        with pytest.raises(NotDeliveredError, match="cannot be reached") as refused:
            sink.send_messages([a_message(0)])
        assert "tops3cret" not in str(refused.value)
    sink.close()
    sink.close()


# Files.


def lines_of(path):
    return [json.loads(line)["id"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_jsonl_sink_writes_a_line_a_message_and_rotates(tmp_path):
    path = tmp_path / "out.jsonl"
    sink = JsonlSink(path, 300, 3)
    for frame in range(0, 16, 2):
        sink.send_messages([a_message(frame), a_message(frame + 1)])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.1", "out.jsonl.2"]
    numbered = [tmp_path / "out.jsonl.2", tmp_path / "out.jsonl.1", path]
    assert [name for one in numbered for name in lines_of(one)] == [f"cam/{frame}" for frame in range(10, 16)]
    assert "Fußgänger" in path.read_text(encoding="utf-8")


def test_jsonl_sink_keeps_one_file_if_told_so(tmp_path):
    sink = JsonlSink(tmp_path / "out.jsonl", 1, 1)
    for frame in range(3):
        sink.send_messages([a_message(frame)])
    assert [one.name for one in tmp_path.iterdir()] == ["out.jsonl"]
    assert lines_of(tmp_path / "out.jsonl") == ["cam/2"]


@pytest.mark.parametrize("cut", ['{"id": "cam/1", "fr', "x" * 200_000])
def test_jsonl_sink_removes_a_line_that_was_cut_off(tmp_path, cut):
    path = tmp_path / "out.jsonl"
    sink = JsonlSink(path, 10**9, 2)
    for before in ([], [a_message(0)]):
        path.write_text("")
        sink.send_messages(before)
        with path.open("a") as file:
            file.write(cut)
        sink.send_messages([a_message(1)])
        assert lines_of(path) == [*(one["id"] for one in before), "cam/1"]


def test_jsonl_sink_that_cannot_write_delivers_nothing(tmp_path):
    with pytest.raises(NotDeliveredError, match=r"out\.jsonl: the folder does not exist"):
        JsonlSink(tmp_path / "gone" / "out.jsonl", 100, 2).send_messages([a_message(0)])


# A web server.


FAULTY_BODIES = {
    "short": ({"Content-Length": "100", "Connection": "close"}, b"ok"),
    "open": ({"Content-Length": "100"}, b""),
    "endless": ({"Transfer-Encoding": "chunked"}, b""),
    "no chunks": ({"Transfer-Encoding": "chunked"}, b"what is this\r\n"),
    "no gzip": ({"Content-Length": "2", "Content-Encoding": "gzip"}, b"ok"),
}
"""Headers and bodies of replies whose bodies cannot be read."""


class WebServer:
    """Web server that answers with the statuses it is given, then with 202, and keeps requests."""

    def __init__(self, *statuses, headers=MappingProxyType({"Content-Length": "2"}), reply=b"ok"):
        self.requests, self.connections = [], set()
        waiting = list(statuses)
        seen, connections = self.requests, self.connections

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                connections.add(self.client_address)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                seen.append((dict(self.headers), body))
                self.send_response(waiting.pop(0) if waiting else 202)
                self.send_header("Location", "/elsewhere")
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def web():
    servers = []

    def start(*statuses, **reply):
        servers.append(WebServer(*statuses, **reply))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_webhook_posts_a_signed_batch(web, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "tops3cret")
    server = web(200)
    sink = make_sink(spec_of("webhook", url=server.url, bearer="${SECRET}"), a_service(tmp_path))
    sink.send_messages([a_message(0), a_message(1)])
    sink.send_messages([a_message(2)])
    sink.report_cameras([Camera("cam")])
    sink.close()
    (headers, body), (_, second) = server.requests
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Bearer tops3cret"
    digest = hmac.new(b"tops3cret", body, hashlib.sha256).hexdigest()
    assert headers["X-Ekya-Signature"] == f"sha256={digest}"
    assert json.loads(body) == {"answers": [a_message(0), a_message(1)]}
    assert json.loads(second)["answers"] == [a_message(2)]
    assert len(server.connections) == 1


@pytest.mark.parametrize("status", [301, 302, 400, 404, 500, 503])
def test_webhook_is_confirmed_by_success_alone(web, status, tmp_path):
    server = web(status)
    sink = make_sink(spec_of("webhook", url=server.url, secret=None), a_service(tmp_path))
    with pytest.raises(NotDeliveredError, match=f"answers with status {status}"):
        sink.send_messages([a_message(0)])
    assert len(server.requests) == 1
    sink.send_messages([a_message(0)])
    assert "X-Ekya-Signature" not in server.requests[1][0]
    sink.close()


@pytest.mark.parametrize("refusal", [302, 503])
@pytest.mark.parametrize("body", FAULTY_BODIES)
def test_webhook_is_confirmed_by_the_status_whatever_is_wrong_with_the_body(web, body, refusal, tmp_path):
    headers, reply = FAULTY_BODIES[body]
    server = web(200, refusal, headers=headers, reply=reply)
    spec = spec_of("webhook", url=server.url, secret=None)
    patient = spec.model_copy(update={"timeout_s": 2 * HANG_GUARD_S})
    sink = make_sink(patient, a_service(tmp_path))
    sink.send_messages(
        [a_message(0)]
    )  # returns, although the body does not come for longer than a test may take
    with pytest.raises(NotDeliveredError, match=f"answers with status {refusal}"):
        sink.send_messages([a_message(1)])
    sink.send_messages([a_message(1)])
    sink.close()
    assert [json.loads(sent)["answers"][0]["frame"] for _, sent in server.requests] == [0, 1, 1]


# Home Assistant.


def test_discovery_describes_three_entities_of_a_camera():
    found = dict(discovery_messages("homeassistant", "ekya", "gate"))
    assert sorted(found) == [
        "homeassistant/binary_sensor/ekya-gate/health/config",
        "homeassistant/sensor/ekya-gate/accuracy/config",
        "homeassistant/sensor/ekya-gate/objects/config",
    ]
    payloads = [json.loads(text) for text in found.values()]
    assert {one["availability_topic"] for one in payloads} == {"ekya/status"}
    assert len({one["unique_id"] for one in payloads}) == 3
    assert {tuple(one["device"]["identifiers"]) for one in payloads} == {("ekya-gate",)}
    assert {one["state_topic"] for one in payloads} == {"ekya/gate/answers", "ekya/gate/status"}


def test_discovery_names_of_two_cameras_differ_in_the_characters_that_are_allowed():
    nodes = {
        next(iter(discovery_messages("ha", "a/b", camera)))[0].split("/")[2] for camera in ("x.1", "x_1", "ü")
    }
    assert len(nodes) == 3
    assert all(node.isascii() and "." not in node and "/" not in node for node in nodes)
