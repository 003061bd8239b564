"""Scoring of a run on a sample of its frames, on more of them, and after an interruption."""

import json

import numpy as np
import pytest
from detecting_run import CAR, FRAMES, LABELLED, STREET, car_at, fleet_of, make_run

from ekya.cli import main
from ekya.config.fleet_reading import write_fleet
from ekya.config.scoring import Scoring
from ekya.core.units import BASE_VERSION
from ekya.models.golden.detections import GoldenObjects
from ekya.models.golden.spec import GoldenSpec
from ekya.results.finalize import finish_run
from ekya.results.storage.run_tables import read_predictions, read_reference, reference_writer

WINDOWS = 2


class Teacher:
    """Golden detector that knows where the car is; is interrupted after a number of frames, if any."""

    classes = ("car", "bus")
    finds = True

    def __init__(self, stops_after=None):
        self.asked = []
        self.stops_after = stops_after

    def find_objects(self, image, place=None, size=None):
        if place is not None:
            if self.stops_after is not None and len(self.asked) >= self.stops_after:
                raise KeyboardInterrupt
            self.asked.append(place.frame)
        box = np.array([car_at(0 if place is None else place.frame)], np.float32)
        return GoldenObjects(box, np.array([CAR]), np.zeros((0, 4), np.float32))


@pytest.fixture
def scored(tmp_path, monkeypatch):
    """Returns a function that scores one run again and again, and the run's folder."""
    folder, fleet = make_run(tmp_path, (STREET,))
    reference_writer(folder.reference(STREET))
    for part in folder.reference(STREET).with_suffix(".parts").iterdir():
        part.unlink()

    def score(scoring, teacher=None):
        teacher = teacher or Teacher()
        for module in ("ekya.pipeline.reference", "ekya.results.scoring"):
            monkeypatch.setattr(f"{module}.open_golden", lambda *_: teacher)
        return finish_run(folder, fleet, "live", 0, score=scoring), teacher

    return score, folder


def test_a_sample_has_frames_of_each_window_and_a_margin_and_grows(scored):
    score, folder = scored
    summary, _ = score(4)
    reference = read_reference(folder.reference(STREET))
    assert len(reference.frame) == summary["scored_frames"] == 4 * WINDOWS
    assert not np.isin(reference.frame, LABELLED).any()
    assert summary["mean_accuracy"] is not None
    base = read_predictions(folder.without_retraining(STREET))
    assert np.isin(reference.frame, base.frame).all()
    # Of version 1 no file is there.
    student = read_predictions(folder.student_alone(STREET))
    assert set(student.model_version.tolist()) == {BASE_VERSION}
    more, teacher = score(10)
    assert more["scored_frames"] == 10 * WINDOWS
    assert not np.isin(teacher.asked, reference.frame).any()
    everything, _ = score(1000)
    assert everything["scored_frames"] == FRAMES - len(LABELLED)
    assert everything["accuracy_margin"] is None


def test_a_live_run_takes_what_the_golden_detector_labels_in_time(scored, monkeypatch):
    score, _ = scored
    summary, _ = score(Scoring.SAMPLE)
    assert summary["scored_frames"] >= 6 * WINDOWS


def test_what_was_scored_before_an_interruption_counts(scored):
    score, folder = scored
    summary, _ = score(10, Teacher(stops_after=3))
    assert summary["scored_frames"] == 3
    assert folder.report.is_file()
    summary, teacher = score(10)
    assert (summary["scored_frames"], len(teacher.asked)) == (20, 17)


def test_student_and_base_are_compared_on_the_frames_of_weights_that_are_still_there(scored):
    score, _ = scored
    summary, _ = score(10)
    street = summary["streams"][STREET]
    # Of version 0 alone there are weights, which are the base's.
    assert street["student_accuracy"] == street["student_without_retraining"]


def test_a_reference_of_all_frames_that_is_interrupted_leaves_no_part(tmp_path, monkeypatch):
    folder, fleet = make_run(tmp_path, (STREET,))
    for part in folder.reference(STREET).with_suffix(".parts").iterdir():
        part.unlink()
    monkeypatch.setattr("ekya.results.scoring.open_golden", lambda *_: Teacher(stops_after=5))
    with pytest.raises(KeyboardInterrupt):
        finish_run(folder, fleet, "emulated", 0)
    assert len(read_reference(folder.reference(STREET)).frame) == 0


def test_the_command_scores_more_frames_of_a_run_and_reports_it(scored, tmp_path, capfd):
    score, folder = scored
    (tmp_path / "golden.onnx").touch()
    golden = GoldenSpec(model="onnx", weights=tmp_path / "golden.onnx")
    write_fleet(folder.fleet, fleet_of(STREET, folder=tmp_path).model_copy(update={"golden": golden}))
    assert main(["score", str(folder.path)]) == 2
    assert "it has no summary yet" in capfd.readouterr().err
    before, _ = score(4)
    assert main(["score", str(folder.path), "--frames", "9", "--json", "-"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["scored_frames"] == 9 * WINDOWS
    assert told["host"] == before["host"]
    assert main(["score", str(folder.path)]) == 0
    assert f"{FRAMES} frames arrived" in capfd.readouterr().out
