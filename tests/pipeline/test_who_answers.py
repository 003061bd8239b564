"""What answers a number of cameras: a cheap golden detector, or adapted students beside a dear one."""

import numpy as np
import pytest

from ekya.config.fleet_reading import parse_fleet
from ekya.core.configs import GOLDEN_RESOLUTION
from ekya.core.errors import UserError
from ekya.core.host import HostCosts, StreamCosts
from ekya.core.profile import Family, FamilyCost
from ekya.models.edge.detection.read_objects import Found
from ekya.models.training.frames import FrameObjects
from ekya.pipeline.video_trial import TriedRun, measure_golden_f1, summarize_runs
from ekya.pipeline.who_answers import CAMERAS, SeenCamera, find_crossing
from ekya.planning.profiling.inference_profile import BurstFrame
from ekya.planning.sizing.fleet_sizes import MachineSize

FAMILIES = tuple(FamilyCost(Family(blocks, 0, 8), 0.02, 0.007 * (1 + blocks)) for blocks in (0, 1, 3))


@pytest.fixture
def fleet(tmp_path):
    (tmp_path / "yard.mp4").touch()
    source = {"kind": "video", "files": [tmp_path / "yard.mp4"]}
    raw = {
        "classes": ["car"],
        "golden": {"model": "fasterrcnn_mobilenet_v3_large_320_fpn"},
        "edge": {"task": "detect"},
        "streams": [{"id": name, "source": source} for name in ("a", "b")],
    }
    return parse_fleet(raw, "fleet.yaml", (tmp_path,))


def crossing(fleet, golden_s, cores=2.0, *f1, times=1.0):
    """Plans cameras whose frames take the student 6 ms, and who follow boxes in 2 ms."""
    frame_gpu_s = {352: 0.006, 288: 0.0045, 224: 0.0037, 160: 0.0025, GOLDEN_RESOLUTION: golden_s}
    cheap = StreamCosts(24.0, frame_gpu_s, 0.0, False, {GOLDEN_RESOLUTION: 0.002}, length_s=20.0)
    dear = StreamCosts(24.0, {side: times * of for side, of in frame_gpu_s.items()}, 0.0, False, {0: 0.002})
    costs = HostCosts({"a": cheap, "b": dear}, golden_s, FAMILIES, cores)
    seen = [SeenCamera(one) for one in f1 or (0.3, 0.3)]
    return find_crossing(fleet, costs, MachineSize(round(1000 * cores)), seen)


def test_golden_detector_answers_up_to_a_number_that_its_cost_and_the_machine_decide(fleet):
    small, large, dear = crossing(fleet, 0.03), crossing(fleet, 0.03, 8.0), crossing(fleet, 0.2)
    assert 0 < dear.all_golden < small.all_golden < large.all_golden
    for found in (small, large, dear):
        rows = {row.cameras: row for row in found.rows}
        assert all(row.by_golden == row.cameras for row in found.rows if row.cameras <= found.all_golden)
        assert rows[found.all_golden + 1].by_golden < found.all_golden + 1
        assert {*CAMERAS} <= {*rows}
        assert rows[1].golden_every[0] <= rows[found.all_golden].golden_every[0], "it looks less often"
        assert rows[1].expected_f1 > rows[64].expected_f1


def test_adapted_students_answer_where_the_golden_detector_is_too_dear(fleet):
    found = crossing(fleet, 2.0)
    first, second = found.rows[:2]
    assert found.all_golden == first.by_golden == 0
    assert (first.retrained, first.labelled, first.student_every) == (1, 1, (1,))
    assert first.expected_f1 > 0.6
    assert second.labelled == 1, "in turn"
    assert 0 < first.labels < 24, "few fit in the longest window"


def test_student_that_is_good_as_it_comes_leaves_nothing_to_adapt(fleet):
    found = crossing(fleet, 0.03, 2.0, 1.0, 1.0)
    assert found.all_golden == 0
    assert not any(row.retrained for row in found.rows)


def test_cameras_are_like_the_videos_in_turn(fleet):
    """The second is so dear that the golden detector answers the first only."""
    rows = {row.cameras: row for row in crossing(fleet, 0.1, times=9.0).rows}
    assert [rows[cameras].by_golden for cameras in (1, 2, 3)] == [1, 1, 2]


def test_more_cameras_than_fit_are_refused_and_none_is_an_error(fleet):
    found = crossing(fleet, 0.03, 0.1)
    assert found.rows[-1].cameras < 64
    assert "too many" in found.refused
    with pytest.raises(UserError, match="one camera is too much"):
        crossing(fleet, 0.5, 0.005)


def test_followed_boxes_count_in_the_f1_of_the_golden_detector_and_held_ones_as_they_are():
    """A car moves by its width in each frame; flow follows it, and a box that stays is wrong."""

    def car(at):
        return np.array([[10.0 * at, 0, 10.0 * at + 10, 10]], np.float32)

    label, scale, length = np.zeros(1, np.int64), np.array([100, 50, 100, 50], np.float32), 6
    burst = tuple(
        BurstFrame(car(at), label, {}, tuple((car(later), label) for later in range(at + 1, length)))
        for at in range(length)
    )
    objects = tuple(
        FrameObjects(car(at) / scale, label, np.zeros((0, 4), np.float32)) for at in range(length)
    )
    missed = Found(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32))
    found = (Found(car(0) / scale, label, np.ones(1, np.float32)), *[missed] * (length - 1))
    run = TriedRun(objects, found, burst, scale)
    assert measure_golden_f1([run, run], 3, 0) == 1.0
    assert measure_golden_f1([run], 3, 1) == pytest.approx(2 / 3)
    assert measure_golden_f1([run], 9, 0) is None, "no whole period was tried"
    assert summarize_runs([run, run]).student_f1 == pytest.approx(2 / 7)
    assert summarize_runs([run, run]).bursts == (burst, burst)
