"""Tests of ``ekya replay`` with a data set: it prepares what is not prepared, goes on, and runs."""

import errno
import json
import shutil
from dataclasses import replace

import pytest
import yaml
from commands import run_summary
from draw_samples import draw_cityscapes

from ekya import cli
from ekya.config.fleet_reading import write_fleet
from ekya.config.shipped import shipped_path
from ekya.control.loop import first_state
from ekya.control.protocols import Batch
from ekya.core import events as ev
from ekya.core.units import StreamId
from ekya.models.golden.label_file import read_labels
from ekya.pipeline.prepare_dataset import plan_preparation
from ekya.pipeline.setup import loop_options
from ekya.results.storage.journal import FileJournal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.segmented_journal import SegmentedJournal
from ekya.streams.datasets.cityscapes import CITYSCAPES
from ekya.streams.sources import DATASETS
from ekya.system.files import user_errors


@pytest.fixture
def played(world):
    """Runs of fake worlds, which leave a journal."""

    def write_journal(folder):
        fleet, _ = world.runs[-1]
        journal = FileJournal(folder.journal, "thief", loop_options(fleet, (), 0, 1, 1000))
        event = ev.StreamAdded(0, StreamId("aachen"), ())
        journal.record_batch(Batch(0, (event,)))
        journal.record_decision(0, None, ())
        journal.close()

    world.during = write_journal
    return world.runs


@pytest.fixture
def examined(monkeypatch):
    """Names of the streams that were examined, in order."""
    names = []

    def examine(root, stream, *more):
        names.append(stream)
        return CITYSCAPES.examine(root, stream, *more)

    monkeypatch.setitem(DATASETS, "cityscapes", replace(CITYSCAPES, examine=examine))
    return names


def replay(*more):
    return cli.main(["replay", "cityscapes", "data", *more])


def pictures(place, city):
    return sorted((place / "data/leftImg8bit/train" / city).iterdir())


def test_replay_prepares_a_data_set_and_plays_its_labels(place, played, capfd):
    assert replay("--window", "40", "--gpus", "2", "--seed", "3", "--json", "-") == 0
    fleet, options = played[0]
    assert [stream.id for stream in fleet.streams] == ["aachen", "ulm"]
    assert (fleet.window_s, fleet.gpus, options.seed) == (40, 2, 3)
    assert (fleet.golden.model, fleet.golden.weights) == ("file", place / "cityscapes.labels.parquet")
    labels = read_labels(fleet.golden.weights)
    assert (labels.head.by, labels.head.frames) == ("truth", {"aachen": 3, "ulm": 2})
    for stream in fleet.streams:
        of, shown = labels.streams[stream.id], list(stream.source.open(fleet.classes).frames())
        assert sum(len(truth.boxes) for _, truth in shown) > 0
        for frame, truth in shown:
            found = of.labels_at_frame(frame.index)
            assert found.boxes.tolist() == truth.boxes.tolist()
            assert [labels.head.names[at] for at in found.classes] == [
                fleet.classes[at] for at in truth.classes
            ]
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert report["mean_accuracy"] == 0.8
    assert report["data"]["streams"]["ulm"]["frames"] == 2
    assert "Everything about this run is in" in err
    assert "Missing or damaged" not in err


def test_replay_leaves_cities_for_pretraining_out_unless_they_are_named(place, played, capfd):
    draw_cityscapes(place / "data", {"bochum": 2})
    assert replay() == 0
    assert [[one.id for one in part] for part in (played[0][0].streams, played[0][0].pretraining)] == [
        ["aachen", "ulm"],
        ["bochum"],
    ]
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("Edge models begin from synthetic_city_resnet18_base.safetensors, which has seen")
    for names in ("bochum", "aachen,bochum,ulm"):
        assert replay("--streams", names) == 0
        assert ",".join(stream.id for stream in played[-1][0].streams) == names
        assert not played[-1][0].pretraining


def test_replay_of_the_prepared_reads_nothing_again(place, played, examined):
    assert replay() == 0
    before = (place / "cityscapes.yaml").read_bytes()
    assert replay("--window", "9", "--schedulers", "uniform") == 0
    assert examined == ["aachen", "ulm"]
    assert (place / "cityscapes.yaml").read_bytes() == before
    assert played[1][0].window_s == 9


def test_replay_examines_only_what_is_asked_for_or_has_changed(place, played, examined):
    assert replay("--streams", "ulm") == 0
    assert [stream.id for stream in played[-1][0].streams] == ["ulm"]
    assert replay() == 0
    assert [stream.id for stream in played[-1][0].streams] == ["aachen", "ulm"]
    assert examined == ["ulm", "aachen"]
    for folder in ("leftImg8bit", "gtFine"):
        for file in (place / "data" / folder / "train/ulm").iterdir():
            new = file.name.replace("ulm_00000", "ulm_00010")
            file.with_name(new).write_bytes(file.read_bytes())
    assert replay() == 0
    assert examined == ["ulm", "aachen", "ulm"]
    assert read_labels(place / "cityscapes.labels.parquet").head.frames == {"aachen": 3, "ulm": 4}
    assert replay("--classes", "car,bus") == 0
    assert examined == ["ulm", "aachen", "ulm", "aachen", "ulm"]
    assert played[-1][0].classes == ("car", "bus")


def test_replay_names_damage_on_the_last_screen_and_plays_the_rest(place, played, capfd):
    cut, empty, *_ = pictures(place, "aachen")
    cut.write_bytes(cut.read_bytes()[:500])
    empty.write_bytes(b"")
    outlines = next((place / "data/gtFine/train/ulm").glob("*_polygons.json"))
    outlines.write_text('{"imgWidth": 9, "imgHeight": 9}')
    (place / "data/leftImg8bit/train/bonn").mkdir()
    lonely = place / "data/leftImg8bit/train/bonn/bonn_000001_000019_leftImg8bit.png"
    lonely.write_bytes(pictures(place, "ulm")[0].read_bytes())
    for _ in range(2):
        assert replay() == 0
        last = capfd.readouterr().out.splitlines()[-6:]
        assert last[0] == "Missing or damaged: 4; the rest is used."
        assert last[1] == f"missing: {place}/data: of bonn there are only pictures, or only labels"
        assert last[2].startswith(f"left out: {cut}: ")
        assert last[3].startswith(f"left out: {empty}: is empty")
        assert last[4].startswith(f"left out: {outlines}: is no file of outlines")
    assert [stream.id for stream in played[-1][0].streams] == ["aachen", "ulm"]


def test_replay_leaves_out_a_stream_that_cannot_be_used(place, played, capfd):
    for picture in pictures(place, "ulm"):
        picture.write_bytes(b"")
    assert replay() == 0
    assert [stream.id for stream in played[-1][0].streams] == ["aachen"]
    assert "Missing or damaged: 2; the rest is used." in capfd.readouterr().out


@pytest.mark.parametrize("frames", [1, 2, 3, 4])
def test_preparation_that_is_killed_goes_on_at_the_same_stream(place, examined, frames):
    def kill(stream, count):
        seen.extend([stream] * count)
        if len(seen) == frames:
            raise KeyboardInterrupt

    def plan():
        return plan_preparation("cityscapes", place / "data", None, (), ())

    seen = []
    with pytest.raises(KeyboardInterrupt):
        plan().prepare_once(kill, asked=False)
    assert not (place / "cityscapes.yaml").exists()
    findings = plan().prepare_once(lambda stream, count: None, asked=False)
    assert examined == (["aachen", "aachen", "ulm"] if frames < 4 else ["aachen", "ulm", "ulm"])
    assert {name: found.frames for name, found in findings.items()} == {"aachen": 3, "ulm": 2}
    assert read_labels(place / "cityscapes.labels.parquet").head.frames == {"aachen": 3, "ulm": 2}


@pytest.mark.parametrize("step", ["join_label_files", "shutil.rmtree", "Path.rename", "write_text_atomic"])
def test_preparation_that_is_killed_while_it_replaces_another_goes_on(
    place, played, examined, monkeypatch, step
):
    class PowerCutError(BaseException):
        pass

    def cut(*_):
        raise PowerCutError

    assert replay("--streams", "ulm") == 0
    with monkeypatch.context() as patched:
        patched.setattr(f"ekya.pipeline.prepare_dataset.{step}", cut)
        with pytest.raises(PowerCutError):
            replay()
    assert replay() == 0
    assert examined == ["ulm", "aachen"]
    assert [stream.id for stream in played[-1][0].streams] == ["aachen", "ulm"]
    assert read_labels(place / "cityscapes.labels.parquet").head.frames == {"aachen": 3, "ulm": 2}


def test_replay_on_a_full_disk_says_so_and_goes_on_when_there_is_space(place, played, monkeypatch, capfd):
    def examine(root, stream, classes, index, on_frame):
        if stream == "ulm":
            with user_errors(index):
                raise OSError(errno.ENOSPC, "full")
        return CITYSCAPES.examine(root, stream, classes, index, on_frame)

    with monkeypatch.context() as patched:
        patched.setitem(DATASETS, "cityscapes", replace(CITYSCAPES, examine=examine))
        assert replay() == 2
        assert "ulm.jsonl: the disk is full; free some space" in capfd.readouterr().err
    assert not played
    assert replay() == 0
    assert [stream.id for stream in played[0][0].streams] == ["aachen", "ulm"]


def test_replay_writes_the_fleet_file_that_a_kill_has_prevented(place, played, examined):
    file = place / "cityscapes.yaml"
    assert replay("--streams", "ulm") == 0
    old = file.read_bytes()
    assert replay() == 0
    new = file.read_bytes()
    file.write_bytes(old)
    assert replay() == 0
    assert file.read_bytes() == new
    assert examined == ["ulm", "aachen"]


def test_replay_keeps_an_edited_fleet_file(place, played, examined, capfd, caplog):
    assert replay("--streams", "ulm") == 0
    file = place / "cityscapes.yaml"
    edited = {**yaml.safe_load(file.read_text()), "window_s": 77.0}
    file.write_text(yaml.safe_dump(edited))
    for _ in range(2):
        assert replay() == 0
        assert "was edited, and is used as it is" in caplog.text
        assert played[-1][0].window_s == 77
    assert replay("--streams", "aachen") == 2
    assert "was edited, and was made with other streams or classes" in capfd.readouterr().err
    pictures(place, "ulm")[0].unlink()
    assert replay() == 0
    assert examined == ["ulm", "ulm"]
    assert played[-1][0].window_s == 77
    assert replay() == 0
    assert yaml.safe_load(file.read_text()) == edited


def test_replay_refuses_a_fleet_file_of_another_folder_or_hand(place, played, capfd):
    shutil.copytree(place / "data", place / "other")
    assert cli.main(["replay", "cityscapes", "other"]) == 0
    assert replay() == 2
    assert f"cityscapes.yaml: is of cityscapes in {place}/other; rename it" in capfd.readouterr().err
    (place / "elsewhere").mkdir()
    (place / "cityscapes.yaml").rename(place / "mine.yaml")
    (place / "cityscapes.index").rename(place / "mine.index")
    (place / "cityscapes.yaml").write_bytes((place / "mine.yaml").read_bytes())
    assert replay() == 2
    assert "cityscapes.yaml: was not made by ekya prepare; rename it" in capfd.readouterr().err
    assert len(played) == 1


def test_replay_takes_what_ekya_prepare_has_written(place, played, examined):
    assert cli.main(["prepare", "cityscapes", "--root", "data", "--window", "50"]) == 0
    assert replay() == 0
    assert examined == ["aachen", "ulm"]
    assert played[0][0].window_s == 50


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cityscapes"], "cityscapes: name the folder of the data set behind it"),
        (["city.yaml", "data"], "city.yaml: there is no such data set; use one of cityscapes, "),
        (["city.yaml", "--streams", "ulm"], "--streams: it goes with a data set"),
        (["cityscapes", "nowhere"], "nowhere: there is no such folder"),
        (
            ["cityscapes", "data", "--live", "--clock", "virtual"],
            "leave out one of --live and --clock virtual",
        ),
        (["cityscapes", "data", "--speed", "2", "--schedulers", "ekya,thief"], "--speed: it is for a run"),
        (["cityscapes", "data", "--classes", "dragon"], "no frame can be used, the first since"),
        (["waymo", "data"], "nothing of Waymo Open Dataset"),
        (["cityscapes", "data", "--drift", "day-night"], "cityscapes says nothing of light and weather"),
        (["city.yaml", "--drift", "day-night"], "--drift: it goes with a data set"),
    ],
)
def test_replay_with_invalid_options_prints_one_line(place, played, capfd, arguments, says):
    assert cli.main(["replay", *arguments]) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("ekya: ")
    assert says in line
    assert not played


def test_replay_with_a_label_file_replaces_the_golden_model(place, played):
    assert replay() == 0
    (place / "own.csv").write_text("stream,frame,x0,y0,x1,y1,class,confidence\nulm,0,1,1,9,9,car,1\n")
    assert replay("--golden", "own.csv") == 0
    assert played[-1][0].golden.weights == place / "own.csv"
    assert cli.main(["run", "cityscapes.yaml", "--golden", "resnet29", "--clock", "virtual"]) == 2
    assert cli.main(["run", "cityscapes.yaml", "--golden", "resnext29", "--clock", "virtual"]) == 0
    assert played[-1][0].golden.model == "resnext29"


def test_replay_with_several_schedulers_compares_them(place, monkeypatch, capfd):
    compared = []

    def compare(fleet, schedulers, seeds, options):
        compared.append((fleet.golden.model, tuple(schedulers), tuple(seeds)))
        return {"runs": [run_summary(scheduler=name) for name in schedulers], "pairs": []}

    monkeypatch.setattr("ekya.simulation.emulated.compare.compare", compare)
    pictures(place, "ulm")[0].write_bytes(b"")
    assert replay("--schedulers", "ekya,uniform", "--seed", "4", "--json", "result.json") == 0
    assert compared == [("file", ("ekya", "uniform"), (4,))]
    assert "Missing or damaged: 1" in capfd.readouterr().out
    assert json.loads((place / "result.json").read_text())["data"]["dataset"] == "cityscapes"


def test_replay_that_runs_live_goes_on_with_an_interrupted_run_of_the_same(place, played):
    assert replay("--live") == 0
    fleet = played[0][0]
    folder = RunFolder.create_numbered(place / "runs", "cityscapes")
    write_fleet(folder.fleet, fleet)
    journal = SegmentedJournal(folder, "ekya", loop_options(fleet, (), 0, 1, 1000))
    journal.write_snapshot(first_state())
    journal.close()
    for changed in (("--seed", "1"), ("--window", "9"), ("--scheduler", "uniform"), ("--clock", "virtual")):
        assert replay(*(("--live", *changed) if "--clock" not in changed else changed)) == 0
        assert played[-1][1].resume is None
    assert replay("--live") == 0
    assert played[-1][1].resume.resolve() == folder.path
    assert replay("--live", "--name", "other") == 0
    assert played[-1][1].resume is None


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_replay_of_the_waymo_sample_prepares_it(tmp_path, monkeypatch, played, caplog, version):
    monkeypatch.chdir(tmp_path)
    root = shipped_path(f"datasets/waymo/sample/{version}")
    assert cli.main(["replay", "waymo", str(root)]) == 0
    fleet, _ = played[0]
    frames = {stream.id: 3 for stream in fleet.streams}
    assert read_labels(tmp_path / "waymo.labels.parquet").head.frames == frames
    assert len(frames) == 4
    assert cli.main(["replay", "waymo", str(root), "--drift", "day-night"]) == 0
    assert {stream.source.drift for stream in played[1][0].streams} == {"day-night"}
    assert (tmp_path / "waymo-day-night.labels.parquet").is_file()
    assert "location_sf-front: 0.3 s day, so it does not drift" in caplog.text
