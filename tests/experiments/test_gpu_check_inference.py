"""Tests of the checks' arithmetic; their measurements need a GPU."""

import importlib
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

# Imported outside of the tests, so that loading torch does not count as a test's time.
check = importlib.import_module("gpu_check_inference")

PLAIN = check.Row("layout", "plain", 6, 1.0, 1.5, 6000.0, 1.0, 0.0)
FASTER = check.Row("layout", "channels-last", 6, 0.5, 0.7, 12000.0, 2.0, 1e-4)


def test_inference_finding_is_met_by_faster_way_with_same_answers():
    found = check.finding_of("layout", [PLAIN, FASTER])
    assert found.met
    assert found.measured == (
        "plain x1.00: 6000/s, p50 1.00 ms, p99 1.50 ms; "
        "channels-last x2.00: 12000/s, p50 0.50 ms, p99 0.70 ms"
    )
    assert not check.finding_of("layout", [PLAIN, replace(FASTER, times=0.9)]).met


def test_inference_finding_of_refused_way_is_listed_and_ignored():
    refused = replace(FASTER, p50_ms=None, p99_ms=None, images_s=None, times=None, note="refused: off by inf")
    found = check.finding_of("half", [PLAIN, refused])
    assert not found.met
    assert found.measured.endswith("; channels-last refused: off by inf")
    assert check.finding_of("half", [PLAIN, refused, FASTER]).met


def test_inference_checks_cover_every_question_of_the_bench(monkeypatch):
    monkeypatch.setattr(
        check.Bench, "compared", lambda _self, question, _ways: [replace(PLAIN, question=question)]
    )
    for name in ("frames", "passes", "layout", "half", "graphs", "streams"):
        monkeypatch.setattr(check.Bench, name, lambda *_: [])
    monkeypatch.setattr(check, "build_edge_model", Mock())
    monkeypatch.setattr(check, "settled", Mock())
    bench = check.Bench("cpu", None, None, rounds=1, most_s=1.0)
    every = {f"inference of a ResNet18, {row.question}" for row in bench.rows(lambda _: None)}
    told = [finding.name for finding in (*check.ways("cpu"), *check.streams("cpu"))]
    assert len(told) == len(every) == 9
    assert set(told) == every


def test_student_finding_needs_the_answers_of_the_cpu(monkeypatch):
    monkeypatch.setattr(check, "_STUDENT_FRAMES", 1)
    (found,) = check.student("cpu")
    assert found.met
    assert (found.figures["boxes"], found.figures["scores"]) == (0.0, 0.0)


@pytest.mark.parametrize("wrong", ["boxes", "scores"])
def test_student_finding_of_other_answers_is_unmet(wrong):
    exact = check.BoxCandidates(np.ones((1, 4, 4)), np.ones((1, 4)), np.zeros((1, 4), int))
    rounded = replace(exact, **{wrong: 1.01 * getattr(exact, wrong)})
    assert check.answers_of(rounded, exact).met
    assert not check.answers_of(replace(exact, **{wrong: 1.03 * getattr(exact, wrong)}), exact).met
