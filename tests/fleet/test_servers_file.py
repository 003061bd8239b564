"""The servers file: its contents, and its errors in one sentence each."""

import pytest
import yaml

from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.fleet.policy.loans import Links
from ekya.fleet.run.server import ServerTerms
from ekya.fleet.servers_file import DEFAULT_SERVERS, dump_servers, load_servers

FLEET = shipped_path("datasets/synthetic_city/fleet.yaml")


def file_of(tmp_path, **changes):
    north = {
        "site": "north",
        "streams": ["cam-2", "cam-1"],
        "samples_may_leave": "crops",
        "changes": {"gpus": 1.1},
    }
    south = {"site": "south", "streams": ["cam-3"], "takes_guests": False}
    raw = {"fleet": str(FLEET), "servers": [south, north], **changes}
    path = tmp_path / "servers.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in raw.items() if value is not None}))
    return path


def test_every_server_has_its_streams_of_a_fleet_file_and_its_own_changes(tmp_path) -> None:
    ways = [{"from": "north", "to": "south", "mb_s": 2}]
    servers = load_servers(
        file_of(tmp_path, name="my town", links={"mb_s": 40, "ways": ways}), {"windows": 3}
    )
    north, south = servers.servers
    assert servers.name == "my-town"
    assert servers.links == Links({("north", "south"): 2.0}, 40.0)
    assert north.terms == ServerTerms("north", samples_may_leave="crops")
    assert south.terms == ServerTerms("south", samples_may_leave="no", takes_guests=False)
    assert [stream.id for stream in north.fleet.streams] == ["cam-1", "cam-2"]
    assert (north.fleet.gpus, south.fleet.gpus) == (1.1, 1.2)
    assert {(server.fleet.name, server.fleet.windows) for server in servers.servers} == {
        ("north", 3),
        ("south", 3),
    }


def test_nothing_leaves_a_server_that_does_not_say_so(tmp_path) -> None:
    (server,) = load_servers(file_of(tmp_path, servers=[{"site": "a"}])).servers
    assert server.terms.samples_may_leave == "no"
    assert len(server.fleet.streams) == 4


OVERLOADED = "datasets/synthetic_city/servers_overloaded.yaml"


@pytest.mark.parametrize(
    ("name", "blocks", "streams"),
    [
        (DEFAULT_SERVERS, (0, 2), {"north": 2, "south": 2}),
        (OVERLOADED, (2,), {"north": 2, "south": 1, "west": 1}),
    ],
)
def test_the_shipped_servers_can_be_run(name, blocks, streams) -> None:
    servers = load_servers(shipped_path(name))
    assert {server.fleet.retraining.trainable_blocks for server in servers.servers} == {blocks}
    assert {server.terms.site: len(server.fleet.streams) for server in servers.servers} == streams
    said = yaml.safe_load(dump_servers(servers))
    assert [server["fleet"] for server in said["servers"]] == [f"{site}/fleet.yaml" for site in streams]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"servers": []}, "servers: the list is empty"),
        ({"servers": [{"site": "a/b"}]}, "use letters, digits"),
        ({"servers": [{"site": "a"}, {"site": "a"}]}, "two are called a; give each its own site"),
        ({"servers": [{"site": "a", "crops_may_leav": True}]}, "crops_may_leav"),
        ({"fleet": None}, "servers.south.fleet: is missing; name a fleet file there"),
        ({"fleet": "nowhere.yaml"}, "nowhere.yaml does not exist; correct the path"),
        ({"servers": [{"site": "a", "streams": ["cam-9"]}]}, "has no stream cam-9; it has cam-1, cam-2"),
        ({"servers": [{"site": "a", "changes": {"gpus": 0.1}}]}, "servers.a with "),
        ({"links": {"mb_s": 0}}, "links.mb_s"),
        ({"links": {"ways": [{"from": "x", "to": "north", "mb_s": 1}]}}, "there is no server x"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence_with_its_key(changes, said, tmp_path) -> None:
    with pytest.raises(UserError, match=r"servers\.yaml: ") as told:
        load_servers(file_of(tmp_path, **changes))
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_detectors_learn_elsewhere_where_their_frames_may_leave(tmp_path) -> None:
    streams = [{"id": "cam-1", "source": {"kind": "video", "files": ["a.mp4"]}}]
    golden = {"model": "onnx", "weights": "golden.safetensors"}
    fleet = {"golden": golden, "edge": {"task": "detect"}, "streams": streams}
    for name in ("golden.safetensors", "a.mp4"):
        (tmp_path / name).touch()
    (tmp_path / "detectors.yaml").write_text(yaml.safe_dump(fleet))
    for word, told in ((False, "no"), ("no", "no"), ("frames", "frames")):
        server = {"site": "north", "samples_may_leave": word}
        (read,) = load_servers(file_of(tmp_path, fleet="detectors.yaml", servers=[server])).servers
        assert read.terms.samples_may_leave == told
    path = file_of(tmp_path, fleet="detectors.yaml", servers=[server | {"samples_may_leave": "crops"}])
    with pytest.raises(UserError, match=r"north\.samples_may_leave: .* write frames, or no"):
        load_servers(path)
