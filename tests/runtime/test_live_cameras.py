"""Live run over real RTSP cameras: one is killed and comes back, and no password is written anywhere."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import yaml
from rtsp_camera import RtspCamera, require_server, street_video
from waiting import LONG_GUARD_S, wait_until

from ekya.control.journal_replay import replay_journal
from ekya.core import events as ev
from ekya.core.commands import SetInference
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions

pytestmark = [pytest.mark.live, pytest.mark.long]

SECRET = "tops3cret"
LOGIN = f"operator:{SECRET}"
EKYA = [sys.executable, "-c", "import sys; from ekya.cli import main; sys.exit(main())", "run"]


@pytest.fixture
def cameras(tmp_path, shared_data):
    """RTSP cameras: the gate's password is in the fleet file, the yard's in an environment variable."""
    require_server()
    video = street_video(tmp_path, shared_data)
    with RtspCamera(video, LOGIN) as gate, RtspCamera(video, LOGIN) as yard:
        yield {"gate": gate, "yard": yard}


@pytest.fixture
def fleet_file(cameras, tmp_path, data_dir):
    gate, yard = (cameras[name].url for name in ("gate", "yard"))
    raw = {
        "name": "cameras",
        "classes": ["person", "car", "background"],
        "gpus": 1.0,
        "window_s": 10,
        "windows": 4,
        "preparation": {"share_milli": 600},
        "golden": {"model": "fastestdet", "weights": str(data_dir / "weights" / "FastestDet.onnx")},
        "streams": [
            {"id": "gate", "source": {"kind": "camera", "url": gate.replace("//", f"//{LOGIN}@")}},
            {"id": "yard", "source": {"kind": "camera", "url": yard.replace("//", "//${YARD_LOGIN}@")}},
        ],
    }
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_killed_camera_is_lost_and_back_without_its_password(cameras, fleet_file, tmp_path):
    mark = f"EKYA_TEST_{uuid.uuid4().hex}"
    environment = os.environ | {"YARD_LOGIN": LOGIN, mark: "1"}
    runs, output = tmp_path / "runs", tmp_path / "output"
    folder = RunFolder(runs / "cameras")
    with output.open("wb") as out:
        running = subprocess.Popen(
            [*EKYA, str(fleet_file), "--runs", str(runs)],
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        wait_until(lambda: count(folder, "WindowOpened") >= 2 and any_frames(folder), guard_s=LONG_GUARD_S)
        cameras["gate"].kill()
        wait_until(lambda: count(folder, "StreamLost") >= 1, guard_s=LONG_GUARD_S)
        time.sleep(2.0)
        cameras["gate"].start()
        wait_until(lambda: count(folder, "StreamBack") >= 1, guard_s=LONG_GUARD_S)
        wait_until(lambda: count(folder, "WindowOpened") >= 3, guard_s=LONG_GUARD_S)
        os.kill(running.pid, signal.SIGINT)
        assert running.wait(LONG_GUARD_S) == 130

        nobody = {key: value for key, value in environment.items() if key != "YARD_LOGIN"}
        command = [*EKYA, "--resume", str(folder.path), "--no-dashboard"]
        refused = subprocess.run(
            command, env=nobody, check=False, timeout=LONG_GUARD_S, stdout=out, stderr=out
        )
        assert refused.returncode == 2
        known = environment | {"EKYA_GATE_LOGIN": LOGIN}
        assert (
            subprocess.run(
                command, env=known, check=False, timeout=LONG_GUARD_S, stdout=out, stderr=out
            ).returncode
            == 0
        )

    said = output.read_text(errors="replace")
    assert "key 'streams.gate.source.url': the environment variable EKYA_GATE_LOGIN is not set" in said
    assert "gate is lost: the camera ended the connection" in said
    places = [output, *(path for path in runs.rglob("*") if path.is_file())]
    assert len(places) > 10
    # Ray keeps its own logs in the folder of its session.
    places += [path for path in Path("/tmp/ray").rglob("*") if path.is_file() and not path.is_symlink()]
    assert [str(path) for path in places if SECRET.encode() in path.read_bytes()] == []
    wait_until(lambda: not left_over(mark), lambda: left_over(mark))

    summary = json.loads(folder.summary.read_text())
    assert summary["frames"]["lost"] == 0
    for stream in ("gate", "yard"):
        frames = read_predictions(folder.predictions(stream)).frame
        assert frames.tolist() == list(range(len(frames)))
        assert summary["streams"][stream]["mean_accuracy"] is None
    assert summary["frames"]["arrived"] == sum(
        len(read_predictions(folder.predictions(stream)).frame) for stream in ("gate", "yard")
    )
    check_journal(folder)


def check_journal(folder):
    """Checks that only the yard was planned for while the gate was lost."""
    name, constants, turns = read_journal(folder.journal)
    assert all(
        turn.same
        for turn in replay_journal(turns, constants, make_scheduler(name).needs, make_scheduler(name).plan)
    )
    lost = next(turn for turn in turns if of_gate(turn, ev.StreamLost))
    back = next(turn for turn in turns if of_gate(turn, ev.StreamBack) and turn.now_us > lost.now_us)
    assert lost.plan is not None and back.plan is not None
    assert [one.stream for one in lost.plan.phases[0].assignments] == ["yard"]
    assert {one.stream for one in back.plan.phases[0].assignments} == {"gate", "yard"}
    assert any(isinstance(command, SetInference) and command.stream == "gate" for command in back.commands)


def of_gate(turn, kind):
    return any(isinstance(event, kind) and event.stream == "gate" for event in turn.events)


def count(folder, kind):
    return folder.journal.read_text().count(f'"{kind}"') if folder.journal.is_file() else 0


def any_frames(folder):
    return all(
        folder.predictions(stream).exists() or list((folder.path / "predictions").glob(f"{stream}*"))
        for stream in ("gate", "yard")
    )


def left_over(mark):
    """Returns processes that the run has left behind, found by an inherited environment variable."""
    return [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if has(path, mark)]


def has(path, mark):
    try:
        return mark.encode() in path.read_bytes()
    except OSError:
        return False
