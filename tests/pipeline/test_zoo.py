"""The zoo on disk."""

import json
from contextlib import closing

import pytest

from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_root
from ekya.core.errors import UserError
from ekya.core.units import ModelVersion, StreamId
from ekya.core.weights import KeptModel, Scene
from ekya.pipeline.zoo_folder import INDEX, open_zoo, read_index
from ekya.results.storage.run_folder import RunFolder

CITY = shipped_root() / "datasets" / "synthetic_city" / "fleet.yaml"


def kept(number, accuracy=0.9):
    scene = Scene((1, 2, 3), (4, 0, 5), 12)
    return KeptModel(number, StreamId("cam"), ModelVersion(number), 70, accuracy, scene)


@pytest.fixture
def weights(tmp_path):
    """Returns a file of some weights."""

    def write(content):
        path = tmp_path / f"{content}.safetensors"
        path.write_bytes(content.encode())
        return path

    return write


@pytest.fixture
def opened(tmp_path):
    """Opens the zoo of a new run, which keeps it in a folder of its own, or in a common one."""
    made = []

    def make(folder=None, **changes):
        if folder is not None:
            folder.mkdir(exist_ok=True)
        named = {} if folder is None else {"folder": str(folder)}
        fleet = load_fleet(CITY, {"zoo": named, **changes})
        zoo = open_zoo(fleet, RunFolder.create_numbered(tmp_path / "runs", "run"))
        made.append(zoo)
        return zoo

    yield make
    for zoo in made:
        if zoo is not None:
            zoo.close()


def test_zoo_of_an_earlier_run_is_there_in_order_of_use(tmp_path, opened, weights):
    first = opened(tmp_path / "zoo")
    first.keep_model(kept(1), weights("one"), ())
    first.keep_model(kept(2), weights("two"), ())
    first.keep_model(kept(3), weights("three"), (2,))
    first.record_use(1)
    first.close()
    again = opened(tmp_path / "zoo")
    assert again.models == (kept(3), kept(1))
    assert again.read(1) == b"one"
    assert again.reader(3)() == b"three"
    assert again.read(2) is again.reader(2) is again.model(2) is None
    assert sorted(path.name for path in (tmp_path / "zoo").glob("*.safetensors")) == [
        "1.safetensors",
        "3.safetensors",
    ]


def test_kept_file_survives_a_change_of_the_runs(tmp_path, opened, weights):
    zoo, path = opened(), weights("one")
    zoo.keep_model(kept(1), path, ())
    path.unlink()
    assert zoo.read(1) == b"one"
    assert zoo.file(1).parent == tmp_path / "runs" / "run" / "zoo"


def test_damaged_file_is_skipped_with_one_warning(tmp_path, opened, weights, caplog):
    zoo = opened()
    zoo.keep_model(kept(1), weights("one"), ())
    zoo.file(1).unlink()
    zoo.file(1).write_bytes(b"0ne")
    assert zoo.read(1) is None
    assert zoo.read(1) is None
    assert caplog.text.count("its checksum is not that of the index; this kept model is left out") == 1
    with pytest.raises(UserError, match="damaged"):
        zoo.reader(1)()


def test_file_that_is_cut_off_is_left_out_when_a_zoo_is_opened(tmp_path, opened, weights, caplog):
    first = opened(tmp_path / "zoo")
    first.keep_model(kept(1), weights("one"), ())
    first.keep_model(kept(2), weights("two"), ())
    first.close()
    (tmp_path / "zoo" / "2.safetensors").unlink()
    (tmp_path / "zoo" / "2.safetensors").write_bytes(b"t")
    assert opened(tmp_path / "zoo").models == (kept(1),)
    assert "2.safetensors: is missing or cut off" in caplog.text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"classes": ["car", "person"]}, "its models are of classes person, car, truck"),
        ({"edge": {"model": "mobilenet_v3_small"}}, "its models are of edge.model resnet18"),
        ({"edge": {"resolution": 48}}, "its models are of edge.resolution 32, and the fleet's of 48"),
    ],
)
def test_zoo_of_other_models_is_left_as_it_is(tmp_path, opened, weights, caplog, changes, reason):
    first = opened(tmp_path / "zoo")
    first.keep_model(kept(1), weights("one"), ())
    first.close()
    before = (tmp_path / "zoo" / INDEX).read_bytes()
    other = opened(tmp_path / "zoo", **changes)
    other.keep_model(kept(1), weights("two"), ())
    assert reason in caplog.text
    assert other.file(1).parent == tmp_path / "runs" / "run-2" / "zoo"
    assert (tmp_path / "zoo" / INDEX).read_bytes() == before


def test_zoo_goes_on_when_the_fleet_has_one_more_class(tmp_path, opened, weights, caplog):
    first = opened(tmp_path / "zoo")
    first.keep_model(kept(1), weights("one"), ())
    first.close()
    larger = ["person", "car", "truck", "bus", "bicycle", "motorcycle", "tram"]
    second = opened(tmp_path / "zoo", classes=larger)
    second.keep_model(kept(2), weights("two"), ())
    second.close()
    assert opened(tmp_path / "zoo", classes=larger).models == (kept(1), kept(2))
    assert caplog.text == ""


def test_zoo_that_another_run_uses_is_left_to_it(tmp_path, opened, caplog):
    opened(tmp_path / "zoo")
    assert opened(tmp_path / "zoo").models == ()
    assert "another run uses it; this run keeps its models in" in caplog.text


def test_damaged_index_is_left_as_it_is(tmp_path, opened, caplog):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / INDEX).write_text("{", encoding="utf-8")
    assert opened(tmp_path / "zoo").models == ()
    assert "zoo.json: is damaged" in caplog.text
    assert (tmp_path / "zoo" / INDEX).read_text(encoding="utf-8") == "{"


def test_index_of_another_version_is_refused(tmp_path, opened, weights):
    zoo = opened(tmp_path / "zoo")
    zoo.keep_model(kept(1), weights("one"), ())
    path = tmp_path / "zoo" / INDEX
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 9}), encoding="utf-8")
    with pytest.raises(UserError, match="is of version 9 and not 1"):
        read_index(tmp_path / "zoo")
    assert read_index(tmp_path) is None


def test_fleet_without_a_zoo_opens_none(opened):
    assert opened(zoo=False) is None


def test_weights_of_a_killed_run_that_its_index_does_not_name_are_removed(tmp_path, weights):
    run, fleet = RunFolder.create_numbered(tmp_path, "run"), load_fleet(CITY)
    with closing(open_zoo(fleet, run)) as zoo:
        zoo.keep_model(kept(2), weights("two"), ())
    for name in ("3.safetensors", "mine.safetensors"):
        (run.zoo / name).write_bytes(b"weights")
    with closing(open_zoo(fleet, run)) as zoo:
        assert zoo.models == (kept(2),)
    left = sorted(path.name for path in run.zoo.glob("*.safetensors"))
    assert left == ["2.safetensors", "mine.safetensors"]
