"""`ekya ctl` against a real server in this process."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from fake_service import CAMERAS, TOKEN, FakeService
from http_asking import FREE_PORT

from ekya.cli import main
from ekya.core.errors import UserError
from ekya.service.http.place import Place, find_service, list_for_user
from ekya.service.http.server import HttpServer


@pytest.fixture
def service():
    return FakeService()


@pytest.fixture
def runs(tmp_path, service):
    """Folder of all runs, with one service."""
    folder = tmp_path / "runs" / "city-east"
    folder.mkdir(parents=True)
    (folder / "token").write_text(f"{TOKEN}\n")
    server = HttpServer(service, folder, TOKEN, FREE_PORT)
    server.start()
    yield folder.parent
    server.close()


def ctl(runs, *arguments):
    return main(["ctl", *arguments, "--runs", str(runs)])


def test_ctl_status_is_a_table_or_json(runs, capfd):
    assert ctl(runs, "status") == 0
    printed = capfd.readouterr().out
    assert all(camera.id in printed for camera in CAMERAS)
    assert "93.4%" in printed
    assert "85-92%" in printed
    assert ctl(runs, "status", "--json", "-") == 0
    assert len(json.loads(capfd.readouterr().out)["cameras"]) == len(CAMERAS)


def test_ctl_status_fits_80_columns_with_each_note_below(runs, service, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    long = replace(CAMERAS[1], id="parking-deck-level-2-north-entrance", frozen=True, model_version=12)
    service.cameras[long.id] = long
    assert ctl(runs, "status") == 0
    lines = capfd.readouterr().out.splitlines()
    table = [line for line in lines if ": " not in line]
    assert len(table) > len(CAMERAS)
    assert max(map(len, table)) <= 80
    assert "…" not in "".join(lines)
    assert "12 frozen" in "".join(lines)
    assert "parking-deck: paused by an operator" in lines


@pytest.mark.parametrize(
    "what", ["pause", "resume", "freeze", "unfreeze", "roll-back", "labels", "forget", "remove"]
)
def test_ctl_changes_a_camera(runs, service, capfd, what):
    assert ctl(runs, what, "yard", "--json", "-") == 0
    assert service.asked == [(what, "yard")]
    assert json.loads(capfd.readouterr().out) == {"subject": "yard", "change": what}


def test_ctl_roll_back_goes_to_a_version(runs, service, capfd):
    assert ctl(runs, "roll-back", "yard", "--version", "0") == 0
    assert service.asked == [(("roll-back", 0), "yard")]
    assert capfd.readouterr().out == "yard serves model 0 again\n"


@pytest.mark.parametrize(
    ("version", "asked"),
    [(["--version", "3"], ("roll-back", 3)), ([], "roll-back")],
    ids=["chosen", "one step"],
)
def test_ctl_roll_back_with_freeze_pins_the_model(runs, service, capfd, version, asked):
    assert ctl(runs, "roll-back", "gate-north", *version, "--freeze", "--json", "-") == 0
    assert service.asked == [(asked, "gate-north"), ("freeze", "gate-north")]
    assert service.cameras["gate-north"].frozen
    told = capfd.readouterr()
    assert json.loads(told.out) == {"subject": "gate-north", "change": "roll-back"}


def test_ctl_roll_back_that_is_refused_freezes_nothing(runs, service):
    assert ctl(runs, "roll-back", "gate-north", "--version", "9", "--freeze") == 2
    assert service.asked == []


def test_ctl_roll_back_whose_freeze_is_refused_says_what_is_done(runs, service, capfd, monkeypatch):
    def refuse(camera, frozen):
        raise UserError("the service is stopping")

    monkeypatch.setattr(service, "freeze_model", refuse)
    assert ctl(runs, "roll-back", "yard", "--version", "3", "--freeze") == 2
    assert service.asked == [(("roll-back", 3), "yard")]
    told = capfd.readouterr().err
    assert "yard is rolled back, but not frozen: city-east: the service is stopping" in told


def test_ctl_set_changes_camera_or_fleet(runs, service):
    assert ctl(runs, "set", "yard", "--weight", "2", "--max-age", "0") == 0
    assert ctl(runs, "set", "yard", "--max-age", "1.5") == 0
    assert ctl(runs, "set", "yard", "--mask", "[[0, 0], [1, 0], [1, 0.5]]", "--zone", "[]") == 0
    assert ctl(runs, "set", "--min-accuracy", "0.6", "--scheduler", "uniform:inference=300") == 0
    assert ctl(runs, "set", "--gpus", "1.5", "--labels", "48", "--frames", "12", "--label-gpu-s", "0") == 0
    assert service.asked == [
        ("change", "yard", {"weight": 2.0, "max_age_s": None}),
        ("change", "yard", {"max_age_s": 1.5}),
        ("change", "yard", {"mask": (((0.0, 0.0), (1.0, 0.0), (1.0, 0.5)),), "zone": ()}),
        ("fleet", {"min_accuracy": 0.6, "scheduler": "uniform:inference=300"}),
        ("fleet", {"gpus": 1.5, "labels_per_window": 48, "frames_per_window": 12, "gpu_s_per_window": None}),
    ]


def test_ctl_add_class_says_what_follows(runs, service, capfd):
    assert ctl(runs, "add-class", "tram") == 0
    told = capfd.readouterr().out
    assert told.startswith("tram is added; the service starts again with the class tram")
    assert ctl(runs, "add-class", "tram", "--json", "-") == 0
    answer = json.loads(capfd.readouterr().out)
    assert (answer["subject"], answer["change"]) == ("tram", "add-class")
    assert answer["note"].startswith("the service starts again")
    assert service.asked == [("class", "tram")] * 2


def test_ctl_add_takes_a_url_videos_or_a_file(runs, service, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attic.yaml").write_text("source: {kind: camera, url: /dev/video0}\nweight: 3\n")
    assert ctl(runs, "add", "gate", "--url", "rtsp://10.0.0.5/live", "--weight", "2") == 0
    assert ctl(runs, "add", "hall", "--video", "a.mp4,b.mp4", "--loop") == 0
    assert ctl(runs, "add", "attic", "--stream", "attic.yaml") == 0
    assert [values for _, values in service.asked] == [
        {"id": "gate", "source": {"kind": "camera", "url": "rtsp://10.0.0.5/live"}, "weight": 2.0},
        {
            "id": "hall",
            "source": {"kind": "video", "files": [str(tmp_path / "a.mp4"), str(tmp_path / "b.mp4")]},
            "play": {"loop": True},
        },
        {"id": "attic", "source": {"kind": "camera", "url": "/dev/video0"}, "weight": 3},
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pause", "cellar"], "ekya: city-east: there is no camera 'cellar'"),
        (["add", "yard", "--url", "/dev/video1"], "there is a camera yard already; choose another id"),
        (["add", "gate"], "the source of the frames is missing: give one of --url, --video and --stream"),
        (["add", "gate", "--url", "a", "--video", "b"], "--url and --video: give one of"),
        (["add", "gate", "--stream", "missing.yaml"], "missing.yaml"),
        (["set", "yard"], "nothing is to change"),
        (["set", "--weight", "2"], "CAMERA is missing: --weight is of one camera; name it"),
        (["set", "yard", "--mask", "left"], "--mask: left is no JSON; write points, as in"),
        (["set", "yard", "--zone", "[[0, 0], [1, 1]]"], "zone: a polygon has 2 points; give it at least 3"),
        (["set", "yard", "--min-accuracy", "0.5"], "--min-accuracy is of the fleet"),
        (["set", "yard", "--labels", "5"], "--labels is of the fleet; leave CAMERA out"),
        (["set", "--frames", "2"], "frames_per_window: 2 is too small; use at least 4"),
        (["add-class", "zeppelin"], "city-east: key 'classes': the golden detector knows no 'zeppelin'"),
        (["roll-back", "yard", "--version", "-1"], "city-east: version: -1 is too small; use at least 0"),
        (
            ["roll-back", "yard", "--version", "7"],
            "city-east: yard: versions beside the serving one that are",
        ),
        (["set", "yard", "--weight", "-1"], "weight: -1.0 is too small; use more than 0"),
    ],
)
def test_ctl_refusals_are_one_sentence(runs, service, capfd, arguments, sentence):
    service.asked.clear()
    assert ctl(runs, *arguments) == 2
    told = capfd.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
    assert not [asked for asked in service.asked if asked[0] not in ("add", "class")]


WAITS = "gate is lost (no route to host); it stays, and is tried again"


@pytest.mark.parametrize(
    "arguments",
    [
        ["add", "gate", "--url", "rtsp://10.0.0.5/live"],
        ["resume", "yard"],
        ["roll-back", "yard"],
        ["roll-back", "yard", "--version", "3", "--freeze"],
    ],
    ids=["add", "resume", "roll back", "roll back and freeze"],
)
def test_ctl_says_what_a_change_waits_for_and_no_success(runs, service, capfd, arguments):
    service.waits = WAITS
    assert ctl(runs, *arguments) == 1
    assert capfd.readouterr().out == f"{WAITS}\n"
    service.cameras = FakeService().cameras
    assert ctl(runs, *arguments, "--json", "-") == 1
    told = json.loads(capfd.readouterr().out)
    assert (told["note"], told["done"]) == (WAITS, False)


def test_ctl_set_says_that_the_service_starts_again(runs, capfd):
    assert ctl(runs, "set", "--gpus", "2") == 0
    assert capfd.readouterr().out.startswith("fleet is changed; the service starts again with these GPUs")


def test_ctl_waits_for_a_change_that_takes_long(runs, service):
    service.held = threading.Event()
    threading.Timer(0.3, service.held.set).start()
    assert ctl(runs, "pause", "yard") == 0
    assert service.asked == [("pause", "yard")]


def test_ctl_without_or_with_a_wrong_token_is_refused(runs, capfd):
    (runs / "city-east" / "token").write_text(f"{TOKEN[::-1]}\n")
    assert ctl(runs, "status") == 2
    (runs / "city-east" / "token").unlink()
    assert ctl(runs, "status") == 2
    assert capfd.readouterr().err.count("send the service's token") == 2


def test_ctl_says_that_a_service_does_not_answer(tmp_path, capfd):
    folder = tmp_path / "gone"
    folder.mkdir()
    Place.of_this_process("127.0.0.1", 1).write_into(folder)
    assert ctl(tmp_path, "status") == 2
    assert "gone: the service does not answer at http://127.0.0.1:1" in capfd.readouterr().err
    assert ctl(tmp_path, "status", "--name", "other") == 2
    assert "other: no service runs here" in capfd.readouterr().err


@pytest.fixture
def place_of(tmp_path, monkeypatch):
    """Returns the folder of a service that this process is said to run, with others listed for the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def make(folder):
        path = tmp_path / folder
        path.mkdir(parents=True)
        Place.of_this_process("127.0.0.1", 1).write_into(path)
        return path

    return make


def test_ctl_finds_the_only_service_of_the_user_wherever_it_runs(place_of):
    yard = place_of("srv/yard")
    with pytest.raises(UserError, match="runs: no service runs here, and none of this user elsewhere"):
        find_service(None, None)
    list_for_user(yard)
    assert find_service(None, None)[0] == yard
    assert find_service(None, "yard")[0] == yard
    with pytest.raises(UserError, match="runs/gate: no service runs here, and none of this user elsewhere"):
        find_service(None, "gate")
    with pytest.raises(UserError, match="runs: no service runs here; start it"):
        find_service(Path("runs"), None)
    (yard / "service.json").unlink()
    with pytest.raises(UserError, match="and none of this user elsewhere"):
        find_service(None, None)


def test_ctl_names_the_services_where_several_run(place_of, tmp_path, capfd):
    yard, gate = place_of("srv/yard"), place_of("home/gate")
    for folder in (yard, gate, gate):
        list_for_user(folder)
    assert main(["ctl", "status"]) == 2
    told = capfd.readouterr().err
    assert f"several services run, gate in {gate.parent}, yard in {yard.parent}; add --name" in told
    assert find_service(None, "gate")[0] == gate
    here = place_of("runs/here")
    assert find_service(None, None)[0].resolve() == here, "the folder of runs comes first"


def test_ctl_leaves_out_a_service_that_was_killed(place_of):
    yard = place_of("srv/yard")
    list_for_user(yard)
    place = json.loads((yard / "service.json").read_text())
    (yard / "service.json").write_text(json.dumps({**place, "started_s": 1.0}))
    with pytest.raises(UserError, match="none of this user elsewhere"):
        find_service(None, None)


def test_service_of_a_user_without_a_place_for_links_runs_unlisted(place_of, tmp_path):
    yard = place_of("srv/yard")
    (tmp_path / "cache").write_text("a file")
    list_for_user(yard)
    with pytest.raises(UserError, match="none of this user elsewhere"):
        find_service(None, None)
