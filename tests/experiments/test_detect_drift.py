"""A camera that shows other scenes and comes back: its visits, and the models that are compared."""

import cv2
import numpy as np
import pytest
from detect_drift import Return, returns_in, serving_before, write_visits

from ekya.core.errors import UserError
from ekya.core.units import ModelVersion
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.checkpoints import save_model
from ekya.models.edge.model import build_edge_model
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import ModelRow, StateStore
from ekya.streams.ingest.video import VideoSpec

CAMERA = "camera"


def video(path, frames, size):
    """Writes a video whose frames become brighter, from 10 on in steps of 5."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 25, size)
    for frame in range(frames):
        writer.write(np.full((size[1], size[0], 3), 10 + 5 * frame, np.uint8))
    writer.release()
    return path


@pytest.fixture
def visits(tmp_path):
    street, gate = video(tmp_path / "street.avi", 40, (96, 64)), video(tmp_path / "gate.avi", 9, (64, 64))
    return write_visits([street, gate, street], tmp_path, visit_s=4.0, fps=2.0)


def test_visits_show_consecutive_parts_for_whole_windows(visits):
    assert [(visit.video, visit.begin_s, visit.end_s) for visit in visits] == [
        ("street.avi", 0.0, 4.0),
        ("gate.avi", 4.0, 8.0),
        ("street.avi", 8.0, 12.0),
    ]
    frames = [frame for frame, _ in VideoSpec(files=tuple(visit.file for visit in visits)).open(()).frames()]
    assert [frame.t_us for frame in frames] == [at * 500_000 for at in range(24)]
    assert {frame.image.shape[:2] for frame in frames} == {(64, 96), (64, 64)}
    shown = [round((float(frame.image.mean()) - 10) / 5) for frame in frames]
    assert shown[:8] == pytest.approx(np.linspace(0, 19, 8), abs=1)
    assert shown[8:16] == pytest.approx(np.linspace(0, 8, 8), abs=1)
    assert shown[16:] == pytest.approx(np.linspace(20, 39, 8), abs=1)


def test_scene_that_is_shown_again_is_a_return(visits):
    first, _, again = visits
    assert list(returns_in(visits)) == [Return(first, again)]
    assert list(returns_in(visits[:2])) == []


def test_video_that_is_too_short_is_named(tmp_path):
    short = video(tmp_path / "short.avi", 2, (64, 64))
    with pytest.raises(UserError, match=r"short\.avi: 2 frames are too few for a visit of 8 s"):
        write_visits([short], tmp_path, visit_s=8.0, fps=10.0)


def test_model_that_serves_is_the_last_swapped_in_before(tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    with StateStore(folder.state) as store:
        for version, at_s in enumerate((0, 5, 8)):
            path = folder.model(CAMERA, ModelVersion(version))
            save_model(build_edge_model(("car",), 0, version, FASTESTDET), path)
            relative = folder.relative(path)
            store.put_model(
                ModelRow(CAMERA, ModelVersion(version), 0, relative, None, None, at_s * 1_000_000)
            )
    assert [serving_before(folder, at_s)[0] for at_s in (0.0, 5.0, 6.0, 8.0, 9.0)] == [0, 0, 1, 1, 2]
