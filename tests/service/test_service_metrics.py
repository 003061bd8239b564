"""Tests of a service's metrics: their text, their names, and the files that are made of them."""

import json
import re

import pytest
import yaml
from kept_status import BEGAN_UNIX_S, a_camera, a_status, host_facts
from prometheus_client.parser import text_string_to_metric_families

from ekya.service.grafana import PANELS
from ekya.service.metrics import METRICS, Exposition, MetricKind
from ekya.service.monitoring_files import ALERTS, DASHBOARD, JOB, PROMETHEUS, RULES, monitoring_files

SUFFIXES = ("_bucket", "_sum", "_count")
OF_PROMETHEUS = {"instance", "job", "le"}
"""Labels that Prometheus adds."""


def scraped(status=None, host=None):
    """Returns the samples of a service: value by name and labels."""
    text = text_of(status or a_status(), host or host_facts())
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def text_of(status, host):
    return Exposition(lambda: status, lambda: host).metrics_text().decode()


STREAM = ("stream", "cam-1")


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("ekya_stream_accuracy_ratio", [STREAM], 0.875),
        ("ekya_stream_audited_accuracy_ratio", [STREAM], 0.81),
        ("ekya_stream_audited_accuracy_low_ratio", [STREAM], 0.76),
        ("ekya_stream_audited_accuracy_high_ratio", [STREAM], 0.86),
        ("ekya_stream_audited_frames", [STREAM], 72),
        ("ekya_stream_inference_share_ratio", [STREAM], 0.25),
        ("ekya_stream_retraining_share_ratio", [STREAM], 0.5),
        ("ekya_stream_health", [("state", "ok"), STREAM], 1),
        ("ekya_stream_health", [("state", "behind"), STREAM], 0),
        ("ekya_stream_state", [("state", "serving"), STREAM], 1),
        ("ekya_stream_state", [("state", "lost"), STREAM], 0),
        ("ekya_stream_frozen", [STREAM], 0),
        ("ekya_stream_model_version", [STREAM], 3),
        ("ekya_stream_frames_due_total", [STREAM], 1000),
        ("ekya_stream_frames_analysed_total", [STREAM], 990),
        ("ekya_stream_retrainings_total", [("outcome", "served"), STREAM], 4),
        ("ekya_stream_retrainings_total", [("outcome", "failed"), STREAM], 2),
        ("ekya_stream_drifts_total", [STREAM], 2),
        ("ekya_stream_labels_total", [STREAM], 340),
        ("ekya_stream_last_labels_timestamp_seconds", [STREAM], BEGAN_UNIX_S + 3000),
        ("ekya_stream_answer_age_seconds", [STREAM], 2),
        ("ekya_service_start_timestamp_seconds", [], BEGAN_UNIX_S),
        ("ekya_service_restarts_total", [], 2),
        ("ekya_service_gpus", [], 1.2),
        ("ekya_service_window", [], 17),
        ("ekya_service_window_seconds", [], 200),
        ("ekya_service_preparing", [], 1),
        ("ekya_service_memory_bytes", [], 2e9),
        ("ekya_service_folder_bytes", [], 5e9),
        ("ekya_service_disk_free_bytes", [], 4e10),
        ("ekya_service_disk_size_bytes", [], 1e11),
        ("ekya_warnings_total", [("source", "golden model")], 3),
        ("ekya_answers_delivered_total", [("sink", "mqtt")], 900),
        ("ekya_answers_lost_total", [("sink", "mqtt")], 1),
        ("ekya_answers_waiting", [("sink", "mqtt")], 30),
        ("ekya_answers_waiting_seconds", [("sink", "mqtt")], 12.5),
        ("ekya_loop_step_seconds_bucket", [("le", "0.001")], 5),
        ("ekya_loop_step_seconds_bucket", [("le", "0.01")], 12),
        ("ekya_loop_step_seconds_bucket", [("le", "10.0")], 15),
        ("ekya_loop_step_seconds_bucket", [("le", "+Inf")], 16),
        ("ekya_loop_step_seconds_count", [], 16),
        ("ekya_loop_step_seconds_sum", [], 21.5),
    ],
)
def test_metric_has_the_value_of_the_status(name, labels, value):
    assert scraped()[name, *labels] == value


def test_every_metric_is_in_the_text_with_its_type_and_help():
    text = text_of(a_status(), host_facts())
    for metric in METRICS:
        assert f"# TYPE {metric.name} {metric.kind}\n" in text
        assert f"# HELP {metric.name} {metric.help}\n" in text
    assert text.count("# TYPE") == len(METRICS)


def test_samples_have_exactly_the_declared_labels():
    labels = {metric.name: set(metric.labels) for metric in METRICS}
    samples = scraped()
    for name, *values in samples:
        base = next((name.removesuffix(one) for one in SUFFIXES if name.endswith(one)), name)
        assert {label for label, _ in values} - {"le"} == labels[base]
    sampled = {name for name, *_ in samples}
    assert {metric.name for metric in METRICS if metric.kind is not MetricKind.HISTOGRAM} <= sampled


def test_removed_camera_leaves_no_sample():
    two = scraped(a_status(a_camera("cam-1"), a_camera("cam-2")))
    one = scraped(a_status(a_camera("cam-2")))
    gone = two.keys() - one.keys()
    assert all(STREAM in labels for _, *labels in gone)
    assert not any(STREAM in labels for _, *labels in one)
    assert len(gone) > 10


def test_unknown_accuracy_and_answers_have_no_sample():
    samples = scraped(a_status(a_camera(accuracy=None, audited=None)), host_facts(answered_unix_s={}))
    assert ("ekya_stream_accuracy_ratio", STREAM) not in samples
    assert not any(name.startswith("ekya_stream_audited") for name, *_ in samples)
    assert ("ekya_stream_answer_age_seconds", STREAM) not in samples


def test_stream_that_never_had_labels_counts_from_the_start_of_the_service():
    samples = scraped(a_status(a_camera(labels_unix_s=None)))
    assert samples["ekya_stream_last_labels_timestamp_seconds", STREAM] == BEGAN_UNIX_S


def test_names_of_cameras_and_processes_are_escaped():
    samples = scraped(a_status(a_camera('a"b\\c\nd')))
    assert ("ekya_stream_drifts_total", ("stream", 'a"b\\c\nd')) in samples


def test_metric_names_follow_the_conventions():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"ekya(_[a-z]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert metric.help.endswith(".")
        assert not OF_PROMETHEUS & set(metric.labels)


# Dashboard and rules name declared metrics only.

EXPRESSIONS = [(alert.name, alert.when) for alert in ALERTS] + [
    (panel.title, query.expression) for panel in PANELS for query in panel.queries
]


@pytest.mark.parametrize(("what", "expression"), EXPRESSIONS)
def test_dashboard_and_rules_name_declared_metrics_and_labels(what, expression):
    labels = {metric.name: set(metric.labels) for metric in METRICS} | {"up": set()}
    for metric in METRICS:
        if metric.kind is MetricKind.HISTOGRAM:
            labels |= {metric.name + suffix: labels[metric.name] for suffix in SUFFIXES}
    named = re.findall(r"\b(ekya_\w+|up)\b(?:\{([^}]*)\})?", expression)
    assert named
    for name, selectors in named:
        assert name in labels, what
        selected = set(re.findall(r"(\w+)\s*(?:=|!=|=~|!~)\"", selectors))
        assert selected <= labels[name] | OF_PROMETHEUS, what


def test_dashboard_or_rules_show_every_metric_but_those_that_say_little():
    shown = {name for _, expression in EXPRESSIONS for name in re.findall(r"\w+", expression)}
    unseen = {one.name for one in METRICS if not shown & {one.name, f"{one.name}_bucket"}}
    assert unseen == {
        "ekya_stream_model_version",
        "ekya_stream_audited_frames",
        "ekya_stream_labels_total",
        "ekya_stream_answer_age_seconds",
        "ekya_service_gpus",
        "ekya_service_window",
        "ekya_service_preparing",
        "ekya_answers_delivered_total",
    }


def test_dashboard_panels_fill_the_page_without_overlap():
    dashboard = json.loads(monitoring_files("host:1", "token")[DASHBOARD])
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) == 24 * (max(y for _, y in cells) + 1)
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers) == len(PANELS)


def test_files_fit_together():
    files = monitoring_files("edge-7:8470", "/srv/runs/yard/token")
    config = yaml.safe_load(files[PROMETHEUS])
    (job,) = config["scrape_configs"]
    assert config["rule_files"] == [RULES]
    assert job["job_name"] == JOB
    (group,) = yaml.safe_load(files[RULES])["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [alert.name for alert in ALERTS]
    assert all(rule["annotations"]["description"] for rule in group["rules"])
