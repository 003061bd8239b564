"""Tests with a real Prometheus: it scrapes a service, evaluates rules and panels, and checks the files."""

import asyncio
import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager, suppress

import pytest
import yaml
from aiohttp import web
from kept_status import Sink, a_camera, a_status, host_facts
from waiting import HANG_GUARD_S, wait_until

from ekya.service.grafana import PANELS
from ekya.service.http.endpoints import METRICS_TYPE
from ekya.service.metrics import Exposition
from ekya.service.monitoring_files import ALERTS, PROMETHEUS, RULES, monitoring_files

pytestmark = [pytest.mark.live, pytest.mark.virtual]

TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="module")
def programs():
    """Paths of Debian's prometheus and promtool."""
    found = [shutil.which(name) for name in ("prometheus", "promtool")]
    if None in found:
        pytest.skip("no prometheus; install Debian's package prometheus")
    return found


@pytest.fixture(scope="module")
def service():
    """A service's endpoint, which a test may change; its port, and its present status."""

    class Service:
        status = a_status(a_camera("cam-1"), a_camera("cam-2", health="lost", state="lost", accuracy=None))
        host = host_facts()
        port = 0

    def text():
        return Exposition(lambda: Service.status, lambda: Service.host).metrics_text()

    async def metrics(request):
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise web.HTTPUnauthorized
        return web.Response(body=text(), headers={"Content-Type": METRICS_TYPE})

    with serving(metrics) as port:
        Service.port, Service.text = port, staticmethod(text)
        yield Service


@contextmanager
def serving(handler):
    """Serves ``/metrics`` in a thread; yields the port."""
    app = web.Application()
    app.add_routes([web.get("/metrics", handler)])
    loop, runner, started, ports = asyncio.new_event_loop(), web.AppRunner(app), threading.Event(), []

    async def start():
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ports.append(runner.addresses[0][1])
        started.set()

    def run():
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(HANG_GUARD_S)
    yield ports[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


@pytest.fixture(scope="module")
def prometheus(programs, service, tmp_path_factory):
    """``query(expression)`` of a Prometheus that scrapes the service with the written files."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "token").write_text(TOKEN)
    for name, text in monitoring_files(f"127.0.0.1:{service.port}", folder / "token").items():
        (folder / name).write_text(text.replace("15s", "1s"))
    port = free_port()
    command = [
        programs[0],
        f"--config.file={folder / PROMETHEUS}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:

        def ask(path, **values):
            url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(values)}"
            with urllib.request.urlopen(url, timeout=HANG_GUARD_S) as answer:
                return json.load(answer)["data"]

        def is_scraped():
            with suppress(urllib.error.URLError, ConnectionError):
                return ask("query", query='up{job="ekya"} == 1')["result"]

        try:
            wait_until(is_scraped, (folder / "log").read_text)
            yield ask
        finally:
            process.terminate()
            process.wait()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def numbers(answer, label):
    return {one["metric"].get(label): float(one["value"][1]) for one in answer["result"]}


def test_prometheus_scrapes_values_and_labels(prometheus):
    for query, label, values in (
        ("ekya_stream_accuracy_ratio", "stream", {"cam-1": 0.875}),
        ('ekya_stream_health{state="lost"}', "stream", {"cam-1": 0, "cam-2": 1}),
        ("ekya_loop_step_seconds_count", "job", {"ekya": 16}),
    ):
        # A scrape that takes longer than its second leaves no values until the next.
        wait_until(lambda of=query, by=label, are=values: numbers(prometheus("query", query=of), by) == are)


def test_prometheus_drops_a_removed_camera(prometheus, service, monkeypatch):
    def cameras():
        return set(numbers(prometheus("query", query="ekya_stream_drifts_total"), "stream"))

    wait_until(lambda: cameras() == {"cam-1", "cam-2"})
    monkeypatch.setattr(service, "status", a_status(a_camera("cam-2")))
    wait_until(lambda: cameras() == {"cam-2"})


def test_prometheus_evaluates_every_rule(prometheus):
    def rules():
        (group,) = prometheus("rules")["groups"]
        assert [rule["name"] for rule in group["rules"]] == [alert.name for alert in ALERTS]
        return all(rule["health"] == "ok" for rule in group["rules"])

    wait_until(rules)


def test_prometheus_fills_in_the_texts_of_alerts(prometheus, service, monkeypatch):
    sinks = (Sink(waiting_s=400.0),)
    monkeypatch.setattr(service, "host", host_facts(disk_free_bytes=5_000_000_000, sinks=sinks))
    at = f"127.0.0.1:{service.port}"

    def summaries():
        alerts = prometheus("alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert["annotations"]["summary"] for alert in alerts}

    expected = {
        "EkyaStreamUnhealthy": f"Stream cam-2 on {at} does not get what it needs",
        "EkyaDiskNearlyFull": f"The disk of Ekya on {at} has 5% left",
        "EkyaAnswersNotDelivered": f"Answers for mqtt on {at} have waited for 6m 40s",
    }
    wait_until(lambda: expected.items() <= summaries().items(), lambda: str(summaries()))
    assert summaries()["EkyaStreamWithoutLabels"].startswith(f"Stream cam-1 on {at} had its last labels ")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_prometheus_evaluates_every_panel(prometheus, panel):
    for query in panel.queries:
        expression = query.expression.replace("$__rate_interval", "1m")
        for variable in ("$instance", "$stream"):
            expression = expression.replace(variable, ".*")
        if panel.title == "Warnings in an hour":  # none came while it was watched
            assert prometheus("query", query=expression)["resultType"] == "vector"
            continue
        wait_until(lambda of=expression: prometheus("query", query=of)["result"])
        for series in prometheus("query", query=expression)["result"]:
            assert set(labels_in(query.legend)) <= set(series["metric"])


def labels_in(legend):
    return [part.partition("}}")[0] for part in legend.split("{{")[1:]]


def test_health_panel_has_the_number_of_the_state(prometheus):
    (panel,) = (one for one in PANELS if one.title == "Health")
    expression = panel.queries[0].expression.replace("$instance", ".*").replace("$stream", ".*")
    texts = {number: option["text"] for number, option in panel.mappings[0]["options"].items()}

    def states():
        answer = numbers(prometheus("query", query=expression), "stream")
        return {stream: texts[str(int(number))] for stream, number in answer.items()}

    wait_until(lambda: states().get("cam-2") == "lost", lambda: str(states()))


def test_promtool_finds_no_fault_in_the_metrics(programs, service):
    done = run(programs[1], "check", "metrics", input=service.text().decode())
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


# What the rules do: series of a service, minute by minute, and the alerts that they raise.


def stream(name, values, **labels):
    return series(f"ekya_stream_{name}", values, stream="cam-1", **labels)


def series(metric, values, **labels):
    named = {"job": "ekya", "instance": "edge-7", **labels}
    text = ", ".join(f'{name}="{value}"' for name, value in named.items())
    return {"series": f"{metric}{{{text}}}", "values": values}


WINDOW = series("ekya_service_window_seconds", "200x120")
SERVING = stream("state", "1x120", state="serving")
THAWED = stream("frozen", "0x120")

CASES = {
    "down": ([series("up", "1x10 0x110")], {"EkyaServiceDown": [14]}, [10, 11]),
    "restarts": (
        [series("ekya_service_restarts_total", "0x10 1x2 2x2 4x105")],
        {"EkyaServiceRestarts": [20, 60]},
        [10, 12, 115],
    ),
    "unhealthy": ([stream("health", "1x10 0x110", state="ok")], {"EkyaStreamUnhealthy": [17]}, [10, 14]),
    "unhealthy for a moment": ([stream("health", "1x10 0x3 1x106", state="ok")], {}, [12, 17, 60]),
    "without labels": (
        [WINDOW, SERVING, THAWED, stream("last_labels_timestamp_seconds", "60x120")],
        {"EkyaStreamWithoutLabels": [52, 60]},
        [20, 34, 45],
    ),
    "labelled": (
        [WINDOW, SERVING, THAWED, stream("last_labels_timestamp_seconds", "0+60x120")],
        {},
        [60, 120],
    ),
    "without labels, but frozen": (
        [WINDOW, SERVING, stream("frozen", "1x120"), stream("last_labels_timestamp_seconds", "60x120")],
        {},
        [60, 120],
    ),
    "without labels, but paused": (
        [
            WINDOW,
            THAWED,
            stream("state", "0x120", state="serving"),
            stream("state", "1x120", state="paused"),
            stream("last_labels_timestamp_seconds", "60x120"),
        ],
        {},
        [60, 120],
    ),
    "disk": (
        [
            series("ekya_service_disk_size_bytes", "100x120"),
            series("ekya_service_disk_free_bytes", "11x20 9x100"),
        ],
        {"EkyaDiskNearlyFull": [32]},
        [20, 29],
    ),
    "answers wait": (
        [series("ekya_answers_waiting_seconds", "0x10 0+60x100", sink="mqtt")],
        {"EkyaAnswersNotDelivered": [23]},
        [10, 15, 20],
    ),
    "answers are lost": (
        [series("ekya_answers_lost_total", "0x10 5x110", sink="mqtt")],
        {"EkyaAnswersLost": [12, 40]},
        [10, 80],
    ),
}


def test_promtool_raises_each_alert_when_it_must_and_not_before(programs, tmp_path):
    rules = yaml.safe_load(monitoring_files("127.0.0.1:1", tmp_path / "token")[RULES])
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]  # promtool would compare them; their texts have a test of their own
    (tmp_path / RULES).write_text(yaml.safe_dump(rules))
    labels = {
        "EkyaAnswersNotDelivered": {"sink": "mqtt"},
        "EkyaAnswersLost": {"sink": "mqtt"},
        "EkyaStreamUnhealthy": {"stream": "cam-1", "state": "ok"},
        "EkyaStreamWithoutLabels": {"stream": "cam-1"},
    }
    severities = {alert.name: alert.severity for alert in ALERTS}

    def raised(name):
        both = {"severity": severities[name], "job": "ekya", "instance": "edge-7"}
        return {"exp_labels": {**both, **labels.get(name, {})}}

    def expected(minute, name, there):
        return {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [raised(name)] if there else []}

    tests = []
    for what, (inputs, alerts, quiet) in CASES.items():
        checks = [expected(minute, name, True) for name, minutes in alerts.items() for minute in minutes]
        checks += [expected(minute, name, False) for name in severities for minute in quiet]
        checks += [
            expected(minute, name, False)
            for minutes in alerts.values()
            for minute in minutes
            for name in severities.keys() - alerts.keys()
        ]
        tests.append({"name": what, "interval": "1m", "input_series": inputs, "alert_rule_test": checks})
    text = yaml.safe_dump({"rule_files": [RULES], "evaluation_interval": "1m", "tests": tests})
    (tmp_path / "tests.yml").write_text(text)
    done = run(programs[1], "test", "rules", "tests.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name for _, alerts, _ in CASES.values() for name in alerts} == set(severities)
