"""A run of detectors is scored, summarised and shown, from files in its folder that were written by hand."""

import base64
import json
import re

import cv2
import numpy as np
import pytest
from detecting_run import EMPTY, FRAMES, LABELLED, LIVE, STREET, make_run

from ekya.core.records import LabelledBoxes
from ekya.results.boxed_picture import MOST_BYTES, WIDTH
from ekya.results.finalize import finish_run, score_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of a finished run, its fleet and its summary."""
    folder, fleet = make_run(tmp_path_factory.mktemp("runs"))
    return folder, fleet, finish_run(folder, fleet, "emulated", 0)


def section_of(html, stream):
    """Returns the part of the page about a stream."""
    return re.search(rf'<h3 id="[^"]*">{stream}</h3>(.*?)(<h3|<h2)', html, re.DOTALL)[1]


def test_detecting_run_is_scored_by_f1(finished):
    _, _, summary = finished
    assert summary["task"] == "detect"
    street = summary["streams"][STREET]
    assert [window["accuracy"] for window in street["windows"]] == [0.0, 1.0]
    assert [window["ap50"] for window in street["windows"]] == [0.0, 1.0]
    assert (street["mean_accuracy"], street["ap50"]) == (0.5, 0.5)
    assert (street["without_retraining"], street["gain"]) == (0.0, 0.5)
    # One car in each frame, whatever was detected; labelled frames are left out whole.
    assert (street["counted_objects"], street["excluded_objects"]) == (FRAMES - len(LABELLED), len(LABELLED))


def test_detecting_run_shows_the_golden_detectors_calls_and_share(finished):
    _, _, summary = finished
    # 0.05 GPU-seconds of two GPUs for four seconds.
    golden = {"labelled_frames": 48, "calls": 60, "gpu_s": 0.05, "gpu_share": 0.00625}
    assert summary["golden"] == {**golden, "device": None, "accuracy": None, "accuracy_interval": None}


def test_detecting_run_scene_without_objects_has_no_accuracy_and_a_reason(finished):
    _, _, summary = finished
    empty = summary["streams"][EMPTY]
    assert (empty["mean_accuracy"], empty["ap50"], empty["counted_objects"]) == (None, None, 0)
    health = summary["health"]["streams"][EMPTY][1]
    assert health["state"] == "unlabelled"
    assert "saw no object" in health["reason"]
    assert summary["mean_accuracy"] == 0.5, "that of the other stream"


def test_detecting_run_live_camera_has_no_reference(finished):
    _, _, summary = finished
    live = summary["streams"][LIVE]
    assert (live["mean_accuracy"], live["without_retraining"], live["counted_objects"]) == (None, None, 0)


def test_detecting_run_written_summary_is_the_returned_one(finished):
    folder, _, summary = finished
    assert json.loads(folder.summary.read_text()) == summary


def test_detecting_run_report_shows_frames_side_by_side(finished):
    folder, _, _ = finished
    section = section_of(folder.report.read_text(), STREET)
    assert section.count("<h4>Window 1, ") == 3
    for words in ("Golden detector:", "Base model:", "Model 1, which served:", "1 object, 1 doubtful"):
        assert section.count(words) >= 3, words
    assert section.count("0 of 1 object found, 1 box wrong</figcaption>") == 3
    assert section.count(" 1 of 1 object found</figcaption>") == 3
    alts = re.findall(r'alt="([^"]*)"', section)
    assert len(set(alts)) == 9
    assert all(alt.startswith("street at ") for alt in alts)


def test_detecting_run_pictures_are_small_and_show_the_frame(finished):
    folder, _, _ = finished
    section = section_of(folder.report.read_text(), STREET)
    jpegs = [base64.b64decode(text) for text in re.findall(r"data:image/jpeg;base64,([^\"]+)", section)]
    assert len(jpegs) == 9
    for jpeg in jpegs:
        assert len(jpeg) <= MOST_BYTES
        image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
        assert image.shape == (270, WIDTH, 3)
        assert image.max() > 180, "the car"


def test_detecting_run_report_says_why_there_are_no_pictures(finished):
    folder, _, _ = finished
    html = folder.report.read_text()
    assert "frames of a live camera are not kept" in section_of(html, LIVE)
    assert "<h4>" not in section_of(html, LIVE)
    assert "no objects" in section_of(html, EMPTY)


def test_detecting_run_frames_that_another_run_labelled_do_not_count(finished):
    folder, fleet, _ = finished
    others = LabelledBoxes(np.array([3, 10, 30]), np.zeros((3, 4), np.float32))
    score = score_run(folder, fleet, {STREET: others})[STREET]
    assert (score.objects, score.excluded_objects) == (FRAMES - 4, 4)
