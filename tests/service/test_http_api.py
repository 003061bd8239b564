"""The REST API over real HTTP: what it answers, what it asks of the service, what it refuses."""

import json
import re
import threading
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from fake_service import CAMERAS, NOW_UNIX_S, TOKEN, FakeService
from http_asking import BEARER, GUARD, serving
from waiting import HANG_GUARD_S, wait_until

from ekya.core.errors import UserError
from ekya.service.http.access import FAILURES_ALLOWED
from ekya.service.http.endpoints import CHANGERS, MOST_BYTES, MOST_CHANGES
from ekya.service.http.events import MOST_LISTENERS
from ekya.service.http.routes import ROUTES, Access


@pytest.fixture
def service():
    return FakeService()


@pytest.fixture
def ask(service, tmp_path):
    with serving(service, tmp_path) as asking:
        yield asking


def called(route):
    return re.sub(r"\{\w+\}", "yard", route.path)


# What is read.


@pytest.mark.parametrize("path", ["/", "/?camera=yard"])
def test_page_takes_the_bearer_token_of_the_api(ask, path):
    shown = ask.get(path)
    assert shown.status == 200
    assert b"yard" in shown.content
    assert "Set-Cookie" not in shown.headers, "who has the token needs no session"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        refused = ask.get(path, headers=headers)
        assert (refused.status, refused.headers["Location"]) == (303, "login")
    assert ask.get("/login").headers["Location"] == "./"


def test_page_goes_on_behind_a_proxy_with_a_log_in_of_its_own(ask):
    cookie = ask.log_in().cookie
    for _ in range(FAILURES_ALLOWED + 1):
        assert ask.get("/", headers={**cookie, "Authorization": "Basic bWU6bWU="}).status == 200
    assert ask.get("/").status == 200, "none of these was a wrong token"


def test_log_in_page_takes_the_token_of_a_link_and_sends_it_in_no_address(ask):
    assert b'src="static/login.js"' in ask.get("/login", headers={}).content
    script = ask.get("/static/login.js", headers={})
    assert script.headers["Content-Type"].startswith("text/javascript")
    text = script.content.decode()
    assert 'URLSearchParams(location.hash.slice(1)).get("token")' in text
    assert text.index("history.replaceState") < text.index(".submit()"), "it leaves the address bar first"
    assert "fetch" not in text
    assert "localStorage" not in text


def test_token_in_the_query_is_no_log_in(ask):
    assert ask.get(f"/?token={TOKEN}", headers={}).status == 303
    assert ask.get(f"/api/v1/status?token={TOKEN}", headers={}).status == 401


def test_status_has_all_cameras(ask):
    status = ask.get("/api/v1/status").json
    assert (status["name"], status["window"], status["capacity_milli"]) == ("city-east", 468, 1200)
    assert [camera["id"] for camera in status["cameras"]] == [camera.id for camera in CAMERAS]
    assert ask.get("/api/v1/cameras").json == status["cameras"]
    assert ask.get("/api/v1/cameras/yard").json == status["cameras"][-1]
    assert status["cameras"][1]["retraining"]["epoch"] == 12


def test_series_is_cut_to_the_hours_asked_for(ask):
    whole = ask.get("/api/v1/cameras/yard/series").json
    hour = ask.get("/api/v1/cameras/yard/series?hours=1").json
    assert len(hour["unix_s"]) == 360 < len(whole["unix_s"])
    assert min(hour["unix_s"]) == NOW_UNIX_S - 3600
    assert {len(column) for column in hour.values()} == {360}
    assert ask.get("/api/v1/cameras/yard/series?hours=0").error == "hours: '0' is too small; use more than 0"
    assert "no such key" in ask.get("/api/v1/cameras/yard/series?days=1").error


def test_models_say_which_one_serves(ask):
    models = ask.get("/api/v1/cameras/crossing/models").json
    assert [model["version"] for model in models if model["serving"]] == [4]
    assert models[0] == {
        "version": 0, "window": 400, "config": None, "validation_accuracy": None, "serving": False,
    }  # fmt: skip
    assert models[1]["config"] == "20 ep, 3 blocks, batch 8, 100% data"


def test_retrainings_picture_answer_and_metrics_come_as_they_are(ask):
    assert [row["outcome"] for row in ask.get("/api/v1/cameras/yard/retrainings").json] == [
        "served", "kept", "failed", "served",
    ]  # fmt: skip
    picture = ask.get("/api/v1/cameras/yard/picture.jpg")
    assert (picture.headers["Content-Type"], picture.content[:2]) == ("image/jpeg", b"\xff\xd8")
    assert ask.get("/api/v1/cameras/yard/answer").json["camera"] == "yard"
    metrics = ask.get("/metrics")
    assert metrics.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert metrics.content.endswith(b"ekya_up 1\n")


def test_validation_of_a_retraining_has_confusion_and_pictures_of_mistakes(ask):
    rows = ask.get("/api/v1/cameras/yard/retrainings").json
    assert [row["validated"] for row in rows] == [True, True, False, True]
    found = ask.get(f"/api/v1/cameras/yard/validation?job={rows[0]['job']}").json
    assert found["classes"] == ["person", "car", "truck"]
    assert found["after"][1] == [0, 44, 3]
    assert found["mistakes"][0] == {"label": "truck", "answer": "car", "confidence": 0.973}
    picture = ask.get("/api/v1/cameras/yard/mistake.jpg?job=12&place=5")
    assert (picture.headers["Content-Type"], picture.content[:2]) == ("image/jpeg", b"\xff\xd8")
    assert "6 pictures" in ask.get("/api/v1/cameras/yard/mistake.jpg?job=12&place=6").error
    assert ask.get("/api/v1/cameras/yard/validation?job=13").status == 404
    assert ask.get("/api/v1/cameras/yard/validation").error.startswith("job: ")
    assert ask.get("/api/v1/cameras/yard/mistake.jpg?job=12&place=-1").status == 400


def test_what_is_not_there_yet_is_not_found(ask):
    assert ask.get("/api/v1/cameras/station-hall/picture.jpg").status == 404
    assert ask.get("/api/v1/cameras/parking-deck/answer").error == "camera parking-deck has no answer yet"


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if "{camera}" in route.path], ids=lambda r: r.name
)
def test_unknown_camera_is_not_found(ask, service, route):
    body = {"version": 1} if route.may_be_empty else {"weight": 2} if route.body else None
    query = "?job=17" if route.name in ("validation", "mistake") else ""
    answer = ask(route.method, route.path.replace("{camera}", "attic%2F..%2Fyard") + query, body)
    assert (answer.status, answer.error) == (404, "there is no camera 'attic/../yard'")
    assert service.asked == []


# What is changed; what a service is asked for in the end is told by ``test_ctl_command``.


@pytest.mark.parametrize("body", [None, b"", {}, {"version": None}])
def test_roll_back_without_a_version_is_one_step(ask, service, body):
    assert ask("POST", "/api/v1/cameras/yard/roll-back", body).status == 204
    assert service.asked == [("roll-back", "yard")]
    assert service.cameras["yard"].model_version == 6


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"version": "newest"}, "version: 'newest' is not possible; write a whole number"),
        ({"version": 1.5}, "version: 1.5 is not possible; write a whole number"),
        ({"verison": 1}, "verison: there is no such key; did you mean version?"),
        (b"3", "the body is no JSON object"),
        (b"{", "the body is no JSON"),
        (b'{"version": 1, "version": 2}', "the body is no JSON (the key 'version' stands there twice"),
    ],
)
def test_version_that_is_not_possible_is_refused(ask, service, body, sentence):
    answer = ask("POST", "/api/v1/cameras/yard/roll-back", body)
    assert answer.status == 400
    assert answer.error.startswith(sentence)
    assert service.asked == []


def test_class_without_a_name_is_refused(ask, service):
    assert ask("POST", "/api/v1/classes", {}).error == "name: this key is missing; add it"
    assert service.asked == []


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("cameras/yard", {"weight": 0}, "weight: 0 is too small; use more than 0"),
        ("cameras/yard", {"wieght": 2}, "wieght: there is no such key; did you mean weight?"),
        ("cameras/yard", {}, "nothing is to change; name one of weight, max_age_s, mask, zone"),
        ("cameras/yard", {"mask": [[0, 0], [640, 0], [640, 360]]}, "mask: the point [640, 0] is outside"),
        ("cameras/yard", {"weight": float("inf")}, "weight: inf is not possible; write a number that"),
        ("fleet", {"min_accuracy": "low"}, "min_accuracy: 'low' is not possible; write a number"),
        ("fleet", {"scheduler": None}, "scheduler: None is not possible; write text"),
        ("fleet", {"min_accuracy": 1}, "min_accuracy: 1 is too large; use less than 1"),
    ],
)  # fmt: skip
def test_terms_that_are_not_possible_are_refused(ask, service, path, body, sentence):
    answer = ask("PATCH", f"/api/v1/{path}", body)
    assert answer.status == 400
    assert answer.error.startswith(sentence)
    assert service.asked == []


def test_sentence_of_the_service_is_passed_on_without_passwords(ask, service):
    assert "choose another id" in ask("POST", "/api/v1/cameras", {"id": "yard", "source": {}}).error
    service.broken = UserError("rtsp://me:secret@10.0.0.5/live: no answer; check it")
    answer = ask.get("/api/v1/status")
    assert (answer.status, answer.error) == (400, "rtsp://***@10.0.0.5/live: no answer; check it")


@pytest.mark.parametrize(
    ("body", "media", "status"),
    [
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[" * 40_000, "application/json", 400),
        (b"[1]", "application/json", 400),
        (b"{}", "application/json", 400),
        (b"{}", "application/json; charset=klingon", 400),
        (b'{"id": "attic"}', "text/plain", 415),
        (b" " * (MOST_BYTES + 1), "application/json", 413),
    ],
)
def test_body_that_is_no_camera_is_refused(ask, service, body, media, status):
    answer = ask("POST", "/api/v1/cameras", body, {**BEARER, "Content-Type": media})
    assert answer.status == status
    assert answer.error
    assert service.asked == []


@pytest.mark.parametrize("fault", [RuntimeError, KeyError, IndexError, LookupError])
def test_fault_of_the_service_is_logged_and_not_shown(ask, service, caplog, fault):
    service.broken = fault("the secret is 42")
    answer = ask.get("/api/v1/status")
    assert (answer.status, answer.error) == (500, "the service failed to answer; its log says why")
    assert "the secret is 42" in caplog.text


def test_unknown_routes_and_methods_are_refused_in_json(ask):
    assert ask.get("/api/v2/status").status == 404
    answer = ask("DELETE", "/api/v1/status")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")
    assert answer.error


def test_changes_beyond_the_limit_are_refused_and_reading_goes_on(ask, service):
    service.held = threading.Event()
    statuses = []
    pausing = [
        threading.Thread(target=lambda: statuses.append(ask("POST", "/api/v1/cameras/yard/pause").status))
        for _ in range(MOST_CHANGES + 2)
    ]
    for thread in pausing:
        thread.start()
    while len(statuses) < 2:
        assert ask.get("/api/v1/status").status == 200
    assert (statuses, service.asked) == ([503, 503], [])
    service.held.set()
    for thread in pausing:
        thread.join()
    assert sorted(statuses) == [204] * MOST_CHANGES + [503] * 2
    assert CHANGERS < MOST_CHANGES


# Who may.


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_asks_for_the_token_unless_it_is_open(ask, service, route):
    expected = 200 if route.access is Access.OPEN else 401
    for headers in ({}, {"Authorization": "Bearer x"}, {"Cookie": "ekya_session_1=x"}, GUARD):
        answer = ask(route.method, called(route), {"weight": 2} if route.body else None, headers)
        assert answer.status == expected
        if expected == 401:
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="ekya"'
    assert service.asked == []


@pytest.mark.parametrize(
    "route", [r for r in ROUTES if r.access is Access.CHANGE], ids=lambda route: route.name
)
def test_change_with_a_cookie_alone_is_refused(ask, service, route):
    cookie = ask.log_in().cookie
    body = {"weight": 2} if route.body else None
    assert ask(route.method, called(route), body, cookie).status == 403
    assert service.asked == []
    assert ask.get("/api/v1/status", cookie).status == 200
    assert ask("POST", "/api/v1/cameras/yard/pause", headers={**cookie, **GUARD}).status == 204


def test_wrong_bearers_are_limited_and_sessions_go_on(ask):
    cookie = ask.log_in().cookie
    wrong = {"Authorization": "Bearer wrong"}
    assert {ask.get("/api/v1/status", wrong).status for _ in range(FAILURES_ALLOWED)} == {401}
    answer = ask.get("/api/v1/status", wrong)
    assert answer.status == 429
    assert 0 < int(answer.headers["Retry-After"]) <= 60
    assert ask.get("/api/v1/status").status == 429
    assert ask.get("/api/v1/status", cookie).status == 200
    assert ask.get("/healthz", {}).status == 200


def test_metrics_are_open_if_wanted(service, tmp_path):
    with serving(service, tmp_path, metrics_open=True) as ask:
        assert ask.get("/metrics", {}).status == 200
        assert ask.get("/api/v1/status", {}).status == 401


def test_without_a_token_changes_need_the_guard_header_and_a_local_name(service, tmp_path):
    with serving(service, tmp_path, token=None) as ask:
        assert ask.get("/api/v1/status", {}).status == 200
        assert ask("POST", "/api/v1/cameras/yard/pause", headers={}).status == 403
        assert ask("POST", "/api/v1/cameras/yard/pause", headers=GUARD).status == 204
        assert ask.get("/api/v1/status", {"Host": "localhost:1"}).status == 200
        rebound = ask.get("/api/v1/status", {"Host": "evil.example"})
        assert (rebound.status, rebound.error) == (
            403, "without a token, this service is called localhost or 127.0.0.1 only",
        )  # fmt: skip


# Health.


def test_health_is_that_of_the_status(ask, service):
    assert ask.get("/healthz", {}).json == {"ok": True}
    service.broken = RuntimeError("gone")
    answer = ask.get("/healthz", {})
    assert (answer.status, answer.json) == (503, {"ok": False})


# Event streams.


def events_of(ask, headers=BEARER):
    connection = HTTPConnection(urlsplit(ask.url).netloc, timeout=HANG_GUARD_S)
    connection.request("GET", "/api/v1/events", headers=headers)
    answer = connection.getresponse()
    return connection, answer


def next_event(answer):
    kind = answer.readline().decode().partition(": ")[2].strip()
    data = json.loads(answer.readline().decode().partition(": ")[2])
    assert answer.readline() == b"\n"
    return kind, data


def test_events_tell_status_and_newest_answers(ask, service):
    connection, answer = events_of(ask)
    assert answer.headers["Content-Type"] == "text/event-stream"
    kind, status = next_event(answer)
    assert (kind, len(status["cameras"])) == ("status", len(CAMERAS))
    serving_now = [camera.id for camera in CAMERAS if camera.state == "serving"]
    told = [next_event(answer) for _ in serving_now]
    assert [(kind, message["camera"]) for kind, message in told] == [("answer", name) for name in serving_now]
    service.cameras.pop("yard")
    kind, status = next_event(answer)
    assert (kind, len(status["cameras"])) == ("status", len(CAMERAS) - 1)
    connection.close()


def test_event_streams_are_limited_and_their_places_free_again(ask):
    open_streams = [events_of(ask) for _ in range(MOST_LISTENERS)]
    assert {answer.status for _, answer in open_streams} == {200}
    refused = ask.get("/api/v1/events")
    assert (refused.status, refused.headers["Retry-After"]) == (503, "10")
    for connection, answer in open_streams:
        answer.close()
        connection.close()
    statuses = set()
    while 200 not in statuses:
        connection, answer = events_of(ask)
        statuses.add(answer.status)
        answer.close()
        connection.close()


def test_fault_in_a_camera_s_newest_answer_is_logged_by_event_streams(ask, service, caplog):
    def newest(camera):
        raise KeyError("no such column")

    service.newest_answer = newest
    connection, _ = events_of(ask)
    wait_until(lambda: "no such column" in caplog.text)
    connection.close()


def test_event_stream_survives_a_fault_of_the_service(ask, service, caplog):
    connection, answer = events_of(ask)
    next_event(answer)
    for _ in range(4):
        next_event(answer)
    service.broken = RuntimeError("for a moment")
    wait_until(lambda: "for a moment" in caplog.text)
    service.broken = None
    assert next_event(answer)[0] == "status"
    connection.close()


def test_token_is_in_no_answer_and_no_log(ask, caplog):
    pages = [ask.get(path).content for path in ("/", "/login", "/api/v1/status", "/metrics", "/openapi.json")]
    assert not any(TOKEN.encode() in page for page in pages)
    assert TOKEN not in caplog.text
