"""The server's life, its page without a browser, and the file that says where it is."""

import os
import re
import socket
import threading
from dataclasses import replace
from importlib.resources import files
from urllib.request import Request, urlopen

import pytest
from fake_service import TOKEN, FakeService
from http_asking import BEARER, FREE_PORT, GUARD, Asking, serving
from waiting import HANG_GUARD_S, wait_until

import ekya.service.http
from ekya.config.fleet_sections import HttpConfig
from ekya.core.errors import UserError
from ekya.service.http import server as server_module
from ekya.service.http.access import FAILURES_ALLOWED
from ekya.service.http.place import Place, find_service, read_place
from ekya.service.http.server import HttpServer

ASSETS = files(ekya.service.http) / "assets"


@pytest.fixture
def ask(tmp_path):
    with serving(FakeService(), tmp_path / "city<east>") as asking:
        yield asking


@pytest.fixture(autouse=True)
def folder(tmp_path):
    (tmp_path / "city<east>").mkdir()
    return tmp_path / "city<east>"


def test_server_says_where_it_is_until_it_is_closed(folder):
    server = HttpServer(FakeService(), folder, TOKEN, FREE_PORT)
    server.start()
    place = read_place(folder)
    assert (place.address, place.pid, place.url) == ("127.0.0.1", os.getpid(), server.url)
    assert Asking(server.url).get("/healthz", {}).status == 200
    server.close()
    server.close()
    assert read_place(folder) is None
    assert not [thread for thread in threading.enumerate() if thread.name == "http"]
    with pytest.raises(ConnectionError):
        Asking(server.url).get("/healthz", {})


def test_server_closes_although_event_streams_are_open(folder, monkeypatch):
    monkeypatch.setattr(server_module, "STOP_S", 2 * HANG_GUARD_S)
    with serving(FakeService(), folder) as ask:
        streams = [urlopen(Request(f"{ask.url}/api/v1/events", headers=BEARER)) for _ in range(3)]
        assert [stream.readline() for stream in streams] == [b"event: status\n"] * 3
    for stream in streams:
        stream.read()
        stream.close()


def test_place_of_a_newer_process_is_left_alone(folder):
    server = HttpServer(FakeService(), folder, TOKEN, FREE_PORT)
    server.start()
    newer = Place.of_this_process("127.0.0.2", 1)
    newer.write_into(folder)
    server.close()
    assert read_place(folder) == newer


def test_port_in_use_is_an_error_of_the_user(ask, tmp_path):
    port = int(ask.url.rpartition(":")[2])
    with pytest.raises(UserError, match=f"127.0.0.1:{port} cannot be listened on"):
        HttpServer(FakeService(), tmp_path, TOKEN, HttpConfig(port=port)).start()
    assert read_place(tmp_path) is None


def test_patient_server_waits_until_its_port_is_free(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(server_module, "AGAIN_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = HttpServer(FakeService(), tmp_path, TOKEN, HttpConfig(port=port))
        server.start(patient=True)
        assert f"127.0.0.1:{port} cannot be listened on" in caplog.text
        assert read_place(tmp_path) is None
    wait_until(lambda: read_place(tmp_path) is not None)
    assert Asking(server.url).get("/healthz", {}).status == 200
    server.close()
    assert read_place(tmp_path) is None


def test_patient_server_closes_while_it_waits(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = HttpServer(FakeService(), tmp_path, TOKEN, HttpConfig(port=taken.getsockname()[1]))
        server.start(patient=True)
        server.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("http")]


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.4", "camera-server"])
def test_no_token_is_for_loopback_only(tmp_path, address):
    with pytest.raises(UserError, match="--no-token: everyone who reaches"):
        HttpServer(FakeService(), tmp_path, None, HttpConfig(address=address))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6; nothing to test")
def test_every_address_is_one_of_ipv4_too(tmp_path):
    with serving(FakeService(), tmp_path, address="::") as ask:
        assert ask.get("/api/v1/status").status == 200
        assert Asking(ask.url.replace("[::1]", "127.0.0.1")).get("/api/v1/status").status == 200


def test_place_is_reached_from_its_own_machine():
    assert Place.of_this_process("0.0.0.0", 80).url == "http://127.0.0.1:80"
    assert Place.of_this_process("::", 80).url == "http://[::1]:80"


def test_sole_service_that_runs_is_found(tmp_path):
    runs = tmp_path / "runs"
    alive = Place.of_this_process("127.0.0.1", 1)
    # The number of the last one was given to another process since.
    places = {"alive": alive, "dead": replace(alive, pid=2**22 - 1), "again": replace(alive, started_s=1.0)}
    for name, place in places.items():
        (runs / name).mkdir(parents=True)
        place.write_into(runs / name)
    (runs / "an-old-run").mkdir()
    assert find_service(runs, None)[0] == find_service(runs, "alive")[0] == runs / "alive"
    for name in ("dead", "again", "an-old-run", "unknown"):
        with pytest.raises(UserError, match=f"{name}: no service runs here"):
            find_service(runs, name)
    alive.write_into(runs / "dead")
    with pytest.raises(UserError, match=f"alive in {runs}, dead in {runs}; add --name"):
        find_service(runs, None)
    (runs / "dead" / "service.json").write_text("{")
    with pytest.raises(UserError, match="the file is damaged"):
        find_service(runs, None)


def test_no_service_at_all_is_told(tmp_path):
    with pytest.raises(UserError, match="start it with ekya serve"):
        find_service(tmp_path, None)


# The page, without a browser.


def test_page_leads_to_the_log_in_and_back(ask):
    answer = ask.get("/", {})
    assert (answer.status, answer.headers["Location"]) == (303, "login")
    assert ask.get("/login", {}).status == 200
    answer = ask.log_in()
    assert (answer.status, answer.headers["Location"]) == (303, "./")
    assert ask.get("/", answer.cookie).status == 200
    assert ask.get("/login", answer.cookie).status == 303


def test_cookie_is_kept_from_scripts_and_other_sites(ask):
    cookie = ask.log_in().headers["Set-Cookie"]
    assert re.match("ekya_session_[0-9a-f]{8}=", cookie)
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert "Secure" not in cookie
    form = {"Content-Type": "application/x-www-form-urlencoded", "X-Forwarded-Proto": "https"}
    assert "Secure" in ask("POST", "/login", f"token={TOKEN}", form).headers["Set-Cookie"]


def test_services_behind_one_host_have_cookies_of_their_own(ask, tmp_path):
    other_token, port = TOKEN[::-1], int(ask.url.rpartition(":")[2])
    with serving(FakeService(), tmp_path, other_token, address="127.0.0.2", port=port) as other:
        cookies = [ask.log_in().cookie["Cookie"], other.log_in(other_token).cookie["Cookie"]]
        assert len({cookie.partition("=")[0] for cookie in cookies}) == 2
        assert [one.get("/", {"Cookie": "; ".join(cookies)}).status for one in (ask, other)] == [200, 200]


def test_wrong_tokens_are_refused_and_limited(ask):
    for _ in range(FAILURES_ALLOWED):
        answer = ask.log_in("wrong")
        assert (answer.status, "Set-Cookie" in answer.headers) == (401, False)
        assert b"not the service&#39;s token" in answer.content
    answer = ask.log_in()
    assert answer.status == 429
    assert b"try again in" in answer.content.lower()


def test_log_out_needs_the_guard_header_and_ends_the_cookie(ask):
    cookie = ask.log_in().cookie
    assert ask("POST", "/logout", headers=cookie).status == 403
    answer = ask("POST", "/logout", headers={**cookie, **GUARD})
    assert answer.status == 204
    assert "Max-Age=0" in answer.headers["Set-Cookie"]


def test_every_answer_forbids_foreign_scripts_and_frames(ask):
    cookie = ask.log_in().cookie
    for path in ("/", "/login", "/static/page.js", "/api/v1/status", "/nothing"):
        headers = ask.get(path, cookie).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] in ("no-store", "no-cache")


def test_page_has_no_inline_code_and_escapes_the_name(ask):
    cookie = ask.log_in().cookie
    page = ask.get("/", cookie).content.decode()
    assert "city&lt;east&gt;" in page
    assert "city<east>" not in page
    for path in ("/", "/?camera=gate-north", "/validation?camera=gate-north&job=17"):
        page = ask.get(path, cookie).content.decode()
        assert "style=" not in page
        assert "onclick" not in page
        assert page.count("<script ") == page.count('src="static/') - page.count('<img src="static/')
        assert page.count("</script>") == page.count("></script>"), "a script has no text of its own"


def test_page_of_a_camera_is_there_without_a_script(ask):
    cookie = ask.log_in().cookie
    page = ask.get("/?camera=gate-north", cookie).content.decode()
    assert "<title>gate-north – city&lt;east&gt; – Ekya</title>" in page
    assert "parking-deck leaves 0.35 of a GPU" in page
    gone = ask.get("/?camera=attic", cookie)
    assert (gone.status, gone.headers["Location"]) == (303, "./")


def test_page_of_a_camera_offers_every_kept_model_but_the_serving_one(ask):
    page = ask.get("/?camera=gate-north", ask.log_in().cookie).content.decode()
    buttons = re.findall(r'<button[^>]*data-do="serve-again"[^>]*>', page)
    assert [re.search(r'data-version="(\d+)"', one)[1] for one in buttons] == ["3", "2", "1", "0"]
    assert all('data-path="cameras/gate-north/roll-back"' in one for one in buttons)


def test_fault_in_the_page_of_a_camera_is_no_absence(tmp_path, caplog):
    service = FakeService()
    with serving(service, tmp_path) as ask:
        cookie = ask.log_in().cookie
        service.broken = KeyError("no such column")
        assert ask.get("/?camera=yard", cookie).status == 500
    assert "no such column" in caplog.text


@pytest.mark.parametrize(
    ("body", "media"), [(b"token=%ff", "; charset=klingon"), (b"token=\xff\xfe", "; charset=utf-8")]
)
def test_log_in_that_is_no_text_is_refused(ask, caplog, body, media):
    form = {"Content-Type": f"application/x-www-form-urlencoded{media}"}
    assert ask("POST", "/login", body, form).status == 400
    assert caplog.text == ""


def test_validation_of_a_retraining_is_shown_to_who_is_logged_in(ask):
    cookie = ask.log_in().cookie
    assert ask.get("/validation?camera=yard&job=17", {}).status == 401
    assert "truck, taken for car, 97.3%" in ask.get("/validation?camera=yard&job=17", cookie).content.decode()
    assert ask.get("/validation?camera=yard&job=13", cookie).status == 404
    for job in ("../7", "7" * 5000):
        assert ask.get(f"/validation?camera=yard&job={job}", cookie).status == 400


def test_own_scripts_of_the_page_stay_few():
    own = [
        path for path in ASSETS.iterdir() if path.name.endswith(".js") and not path.name.endswith(".min.js")
    ]
    lines = [line for path in own for line in path.read_text().splitlines()]
    assert len(lines) < 400
    assert max(map(len, lines)) <= 120


def test_files_of_the_page_are_open_and_not_sent_twice(ask):
    answer = ask.get("/static/page.js", {})
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/javascript; charset=utf-8")
    again = ask.get("/static/page.js", {"If-None-Match": answer.headers["ETag"]})
    assert (again.status, again.content) == (304, b"")
    assert ask.get("/static/../server.py", {}).status == 404
    assert ask.get("/static/page.html.j2", {}).status == 404


def test_page_without_a_token_has_no_log_in(folder):
    with serving(FakeService(), folder, token=None) as ask:
        page = ask.get("/", {}).content.decode()
        assert "Log out" not in page
        assert ask.get("/login", {}).status == 303
