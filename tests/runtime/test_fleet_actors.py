"""Tests of streams whose inference shares a process, and of restarting dead workers."""

import os
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import RayActorError

from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.areas import WHOLE_PICTURE, Areas
from ekya.core.errors import UserError
from ekya.core.events import Role
from ekya.core.units import BASE_VERSION, ModelVersion
from ekya.planning.placement.homes import Processes
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.actors.actor_kinds import ActorConfig, Ready
from ekya.runtime.actors.answering import AnsweringMark
from ekya.runtime.driver import actor_processes
from ekya.runtime.driver.fleet_actors import ALONE_AFTER_S, FleetActors
from ekya.runtime.driver.places import Place, on_this_node
from ekya.system.host import HostMemory

STREAMS = ("cam-1", "cam-2", "cam-3", "cam-4")


class Made:
    """Fake actor with its name, environment and config; records its calls."""

    def __init__(self, _kind, name, environment, _gpu_part, config, *loaded, strategy, threads):
        self.strategy = strategy
        self.name, self.environment, self.config, self.loaded = name, environment, config, loaded
        self.calls = []

    def __getattr__(self, method):
        def remote(*arguments):
            return self._called((method, *arguments))

        return SimpleNamespace(remote=remote, options=lambda num_returns: SimpleNamespace(remote=remote))

    def _called(self, call):
        self.calls.append(call)
        return self.name, call


@pytest.fixture
def fleet_of(monkeypatch, tmp_path):
    monkeypatch.setattr(actor_processes, "make_actor", Made)
    monkeypatch.setattr(ray, "put", lambda weights: ("stored", weights))
    monkeypatch.setattr(ray, "get", lambda reference: reference[1])
    shipped = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"), {"gpus": 2.0})
    shares = SimpleNamespace(
        actor_env=lambda job: {"GPU": str(job.gpu), "JOB": job.name, "SHARE": job.share_milli}
    )

    def made(
        process,
        server="",
        device="cpu",
        homes=(0, 1, 0, 1),
        now_s=lambda: 0.0,
        place_at=on_this_node,
        **more,
    ):
        config = ActorConfig(
            RunFolder(tmp_path),
            shipped,
            0,
            shares,
            device,
            homes,
            server=server,
            processes=Processes(process),
            **more,
        )
        fleet = FleetActors(config, dict.fromkeys(STREAMS, (b"base", BASE_VERSION)), now_s, place_at)
        fleet.make_remaining_actors()
        return fleet

    return made


def streams_by_process(fleet):
    return {made.name: [own.stream for own in made.config.streams] for made in fleet.workers(Role.INFERENCE)}


def test_streams_without_sharing_have_a_process_each(fleet_of):
    fleet = fleet_of("stream")
    assert streams_by_process(fleet) == {f"inference/{stream}": [stream] for stream in STREAMS}
    for role in Role:
        assert fleet.streams_sharing_process("cam-1", role) == ()


def test_streams_of_a_gpu_share_a_process_there(fleet_of):
    fleet = fleet_of("gpu")
    assert streams_by_process(fleet) == {
        "inference/gpu-0": ["cam-1", "cam-3"],
        "inference/gpu-1": ["cam-2", "cam-4"],
    }
    for role in Role:
        assert fleet.streams_sharing_process("cam-2", role) == ("cam-4",)
    assert [made.config.gpu for made in fleet.workers(Role.INFERENCE)] == [0, 1]
    assert fleet.workers(Role.INFERENCE)[1].environment == {"GPU": "1", "JOB": "inference/gpu-1", "SHARE": 0}
    assert [made.name for made in fleet.workers(Role.RETRAINING)] == ["retraining/gpu-0", "retraining/gpu-1"]
    assert [own.stream for own in fleet.workers(Role.RETRAINING)[0].config.streams] == ["cam-1", "cam-3"]


def test_actors_of_a_named_server_have_its_name(fleet_of):
    fleet = fleet_of("gpu", "west")
    assert [made.name for made in fleet.workers(Role.INFERENCE)] == [
        "west/inference/gpu-0",
        "west/inference/gpu-1",
    ]
    assert fleet.streams["cam-2"].retraining.name == "west/retraining/gpu-1"
    fleet.note_death(fleet.streams["cam-2"].retraining)
    fleet.remake_worker("cam-2", Role.RETRAINING, 77)
    assert fleet.streams["cam-2"].retraining.name == "west/retraining/gpu-1 (restart 1)"


def test_dead_shared_inference_is_made_once_and_its_streams_join(fleet_of):
    fleet = fleet_of("gpu")
    dead = fleet.streams["cam-1"].inference
    fleet.streams["cam-3"].weights, fleet.streams["cam-3"].version = ("stored", b"newer"), ModelVersion(4)
    fleet.note_death(dead)
    for stream in ("cam-1", "cam-3"):
        fleet.remake_worker(stream, Role.INFERENCE, 77)
    made = fleet.streams["cam-1"].inference
    assert made is fleet.streams["cam-3"].inference is not dead
    assert (made.name, made.config.streams) == ("inference/gpu-0 (restart 1)", ())
    joined = [(config.stream, weights, config.version, at) for _, config, weights, at in made.calls[1:]]
    assert joined == [("cam-1", ("stored", b"base"), 0, 77), ("cam-3", ("stored", b"newer"), 4, 77)]
    assert fleet.streams["cam-2"].inference.name == "inference/gpu-1"


def test_inference_that_is_made_again_begins_with_changed_areas(fleet_of):
    """Whatever was added and removed since it was made first."""
    fleet, areas = fleet_of("stream"), Areas(zone=(((0.0, 0.0), (1.0, 0.0), (1.0, 0.5)),))
    fleet.remove_stream("cam-1")
    fleet.change_areas("cam-3", areas)
    fleet.note_death(fleet.streams["cam-3"].inference)
    fleet.remake_worker("cam-3", Role.INFERENCE, 77)
    _, config, *_ = fleet.streams["cam-3"].inference.calls[-1]
    assert (config.stream, config.gpu) == ("cam-3", 0)
    assert config.common.fleet.stream("cam-3").areas == areas
    assert fleet.fleet.stream("cam-2").areas == WHOLE_PICTURE


def test_stream_that_failed_alone_joins_its_process_again(fleet_of):
    for process in ("stream", "gpu"):
        fleet = fleet_of(process)
        before = fleet.streams["cam-1"].inference
        fleet.remake_worker("cam-1", Role.INFERENCE, 77)
        assert fleet.streams["cam-1"].inference is before
        assert [call[0] for call in before.calls] == ["process_id", "rejoin_stream"]


def test_dead_shared_retraining_is_made_with_all_its_streams(fleet_of):
    fleet = fleet_of("gpu")
    inference, dead = fleet.streams["cam-1"].inference, fleet.streams["cam-1"].retraining
    fleet.note_death(dead)
    for stream in ("cam-3", "cam-1"):
        fleet.remake_worker(stream, Role.RETRAINING, 77)
    made = fleet.streams["cam-1"].retraining
    assert fleet.streams["cam-1"].inference is inference
    assert made is fleet.streams["cam-3"].retraining is not dead
    assert {own.stream for own in made.config.streams} == {"cam-1", "cam-3"}
    assert [call[0] for call in made.calls] == ["process_id", "admit_stream", "admit_stream"]


@pytest.mark.parametrize("role", Role)
def test_shared_process_that_dies_again_is_split(fleet_of, role):
    fleet = fleet_of("gpu")
    for deaths in (1, 2):
        dead = fleet.streams["cam-1"].worker(role)
        fleet.note_death(dead)
        fleet.note_death(dead)  # a death that is reported twice counts once
        for stream in ("cam-1", "cam-3"):
            fleet.remake_worker(stream, role, 77)
        assert fleet.streams_sharing_process("cam-1", role) == (("cam-3",) if deaths == 1 else ())
    assert fleet.streams["cam-1"].worker(role).name == f"{role}/cam-1"
    assert fleet.streams_sharing_process("cam-2", role) == ("cam-4",)


def die_answering(fleet, *streams):
    """Has the process of cam-1's inference die while it answers streams, and all start again."""
    dead = fleet.streams["cam-1"].inference
    AnsweringMark(dead.config.answering).write_streams(streams)
    charged = fleet.note_death(dead)
    assert fleet.note_death(dead) == charged, "a death that is reported twice"
    for stream in STREAMS:
        fleet.remake_worker(stream, Role.INFERENCE, 77)
    return charged


def test_stream_that_is_answered_when_its_process_dies_again_moves_and_others_stay(fleet_of):
    fleet = fleet_of("gpu", homes=(0, 0, 0, 0))
    assert die_answering(fleet, "cam-1", "cam-3", "not here") == {"cam-1", "cam-3"}
    assert fleet.streams_sharing_process("cam-1", Role.INFERENCE) == STREAMS[1:]
    joined = {call[1].stream: call[1].alone_until_s for call in fleet.streams["cam-1"].inference.calls[1:]}
    assert joined == {"cam-1": ALONE_AFTER_S, "cam-2": 0.0, "cam-3": ALONE_AFTER_S, "cam-4": 0.0}
    assert die_answering(fleet, "cam-3") == {"cam-3"}
    assert fleet.streams["cam-3"].inference.name == "inference/cam-3"
    assert fleet.streams_sharing_process("cam-1", Role.INFERENCE) == ("cam-2", "cam-4")
    assert die_answering(fleet) == {"cam-1", "cam-2", "cam-4"}, "nothing is known"
    assert fleet.streams_sharing_process("cam-2", Role.INFERENCE) == ("cam-4",)


def test_trainers_of_a_gpu_share_its_streams_and_a_fixed_part_of_it(fleet_of):
    fleet = fleet_of("gpu", homes=(0, 0, 0, 1), trainers=2, trainer_milli=450)
    trainers = {made.name: made for made in fleet.workers(Role.RETRAINING)}
    inside = {name: [own.stream for own in made.config.streams] for name, made in trainers.items()}
    assert inside == {
        "retraining/gpu-0/0": ["cam-1", "cam-3"],
        "retraining/gpu-0/1": ["cam-2"],
        "retraining/gpu-1/0": ["cam-4"],
    }
    assert {made.environment["SHARE"] for made in trainers.values()} == {450}


@pytest.fixture
def training(fleet_of):
    """Moves a retraining of a fleet on one GPU with two trainers; returns the number of its trainer."""
    fleet = fleet_of("gpu", homes=(0, 0, 0, 0), trainers=2)

    def move(stream, *training):
        moved = fleet.move_retraining(stream, training, 77)
        assert (moved is None) == (fleet.streams[stream].trainer == trainer_of[stream])
        trainer_of[stream] = fleet.streams[stream].trainer
        assert fleet.streams[stream].retraining.name.startswith(f"retraining/gpu-0/{trainer_of[stream]}")
        return trainer_of[stream]

    trainer_of = {stream: fleet.streams[stream].trainer for stream in STREAMS}
    return SimpleNamespace(fleet=fleet, move=move)


def test_retraining_begins_in_the_trainer_with_fewest_jobs(training):
    old, new = (training.fleet.streams[stream].retraining for stream in ("cam-3", "cam-2"))
    assert training.move("cam-3") == 0, "its own is free"
    assert training.move("cam-3", "cam-1") == 1
    assert old.calls[-1] == ("remove_stream", "cam-3")
    assert (new.calls[-1][0], new.calls[-1][1].stream) == ("admit_stream", "cam-3")
    assert training.move("cam-2", "cam-1", "cam-3") == 1, "no other has fewer"
    assert training.move("cam-4", "cam-1", "cam-2", "cam-3") == 0
    training.fleet.streams["cam-4"].newest_weights = "on their way"
    assert training.move("cam-4", "cam-1") == 0


def test_death_of_a_trainer_takes_only_its_retrainings_and_it_is_made_again(training):
    fleet = training.fleet
    training.move("cam-3", "cam-1")
    dead, other = (fleet.streams[stream].retraining for stream in ("cam-1", "cam-3"))
    assert fleet.note_death(dead) == {"cam-1"}
    fleet.remake_worker("cam-1", Role.RETRAINING, 77)
    made = fleet.streams["cam-1"].retraining
    assert fleet.streams["cam-3"].retraining is other is not made
    assert training.move("cam-2", "cam-3", "cam-4") == 0, "it takes streams that it did not begin with"
    assert fleet.streams["cam-2"].retraining is made
    assert fleet.note_death(other, {"cam-3", "cam-1"}) == {"cam-3"}


def test_shared_process_with_deaths_far_apart_is_not_split(fleet_of):
    fleet = fleet_of("gpu", now_s=iter((0.0, ALONE_AFTER_S + 1)).__next__)
    for _ in range(2):
        fleet.note_death(fleet.streams["cam-1"].inference)
        fleet.remake_worker("cam-1", Role.INFERENCE, 77)
    assert fleet.streams_sharing_process("cam-1", Role.INFERENCE) == ("cam-3",)


@pytest.mark.parametrize(
    ("device", "homes", "expected"),
    [
        ("cpu", (0, 0, 0, 0), 0),
        ("cuda", (0, 0, 0, 0), 1),
        ("cuda", (0, 1, 1, 1), 0),
        ("cpu", (0, 1, 1, 1), 0),
    ],
)
def test_added_stream_goes_to_the_gpu_with_most_left(fleet_of, device, homes, expected):
    """On cores it joins a process that is there, on a GPU it may begin one."""
    fleet = fleet_of("gpu", device=device, homes=homes)
    new = fleet.fleet.streams[0].model_copy(update={"id": "new"})
    larger = fleet.fleet.model_copy(update={"streams": (*fleet.fleet.streams, new)})
    fleet.add_stream(larger, "new", None, 77)
    assert fleet.home_gpu("new") == expected
    joined = homes.count(expected) > 0
    assert bool(fleet.streams_sharing_process("new", Role.INFERENCE)) == joined


_NO_PID = 1 << 30
"""Above the kernel's largest."""


@pytest.fixture
def spares_of(fleet_of, monkeypatch):
    """Makes a fleet with warm, cold or dead spare processes, and restarts the inference of cam-2."""

    def of(warm=True, dead=False, gone=False, processes="gpu"):
        fleet = fleet_of(processes)

        def get(references):
            if dead:
                raise RayActorError
            return [None, _NO_PID if gone else os.getpid()]

        monkeypatch.setattr(actor_processes, "read_host_memory", lambda: HostMemory(1 << 40, 1 << 40))
        monkeypatch.setattr(ray, "wait", lambda asked, timeout: (asked, []) if warm else ([], asked))
        monkeypatch.setattr(ray, "get", get)
        fleet.make_spares()
        fleet.note_death(fleet.streams["cam-2"].inference)
        fleet.remake_worker("cam-2", Role.INFERENCE, 77)
        return fleet

    return of


def test_spare_process_takes_over_on_its_gpu_and_is_replaced(spares_of):
    fleet = spares_of()
    took_over = fleet.streams["cam-2"].inference
    assert took_over is fleet.streams["cam-4"].inference
    assert took_over.name.startswith("inference/spare")
    assert (took_over.environment["GPU"], took_over.config.gpu, took_over.config.streams) == ("1", 1, ())
    awaited = {"retraining/gpu-0", "retraining/gpu-1", "micro-profiler"}
    assert {(name, *call) for name, call in took_over.loaded} == {(name, "confirm_ready") for name in awaited}
    fleet.make_spares()
    fleet.note_death(took_over)
    fleet.remake_worker("cam-4", Role.INFERENCE, 77)
    again = fleet.streams["cam-4"].inference
    assert again.name.startswith("inference/spare")
    assert again is not took_over


@pytest.mark.parametrize("processes", ["stream", "gpu"])
def test_added_stream_that_needs_a_process_takes_the_spare_one(spares_of, processes):
    fleet = spares_of(processes=processes)
    fleet.make_spares()
    new = fleet.fleet.streams[0].model_copy(update={"id": "new"})
    fleet.add_stream(fleet.fleet.model_copy(update={"streams": (*fleet.fleet.streams, new)}), "new", None, 77)
    own = fleet.streams["new"]
    assert own.inference.name.startswith("inference/spare") == (processes == "stream")
    assert [call[0] for call in own.inference.calls][-2:] == ["make_base_weights", "admit_stream"]
    assert own.retraining.name.startswith("retraining/")


def test_spare_process_takes_over_no_retraining(spares_of):
    fleet = spares_of()
    fleet.make_spares()
    fleet.note_death(fleet.streams["cam-2"].retraining)
    fleet.remake_worker("cam-2", Role.RETRAINING, 77)
    assert fleet.streams["cam-2"].retraining.name == "retraining/gpu-1 (restart 1)"


@pytest.mark.parametrize("state", [{"warm": False}, {"dead": True}, {"gone": True}])
def test_spare_process_that_is_cold_or_dead_takes_nothing_over(spares_of, state):
    assert spares_of(**state).streams["cam-2"].inference.name == "inference/gpu-1 (restart 1)"


def test_spare_process_that_has_died_is_made_again(spares_of, monkeypatch):
    fleet = spares_of()
    fleet.make_spares()
    monkeypatch.setattr(ray, "get", lambda references: [None, _NO_PID])
    fleet.make_spares()
    monkeypatch.setattr(ray, "get", lambda references: [None, os.getpid()])
    fleet.note_death(fleet.streams["cam-2"].inference)
    fleet.remake_worker("cam-2", Role.INFERENCE, 77)
    assert fleet.streams["cam-2"].inference.name.startswith("inference/spare (restart")


def test_spare_process_does_not_wait_for_trainers_that_have_ended(fleet_of, monkeypatch):
    """It would die of their death, again and again, as long as a camera is set aside."""
    monkeypatch.setattr(actor_processes, "end_process", lambda actor, pid, node: None)
    fleet = fleet_of("stream")
    ended, dead = (fleet.streams[stream].retraining for stream in ("cam-1", "cam-2"))
    fleet.kill_process(ended)
    fleet.note_death(dead)
    for made in fleet.workers(Role.RETRAINING):
        made.calls.clear()
    fleet.make_spares()
    asked = [made for made in fleet.workers(Role.RETRAINING) if ("confirm_ready",) in made.calls]
    assert asked == [fleet.streams[stream].retraining for stream in ("cam-3", "cam-4")]


def test_make_spares_with_little_memory_makes_none(fleet_of, monkeypatch):
    monkeypatch.setattr(actor_processes, "read_host_memory", lambda: HostMemory(1 << 40, 1 << 20))
    fleet = fleet_of("gpu")
    fleet.make_spares()
    fleet.note_death(fleet.streams["cam-1"].inference)
    fleet.remake_worker("cam-1", Role.INFERENCE, 77)
    assert fleet.streams["cam-1"].inference.name == "inference/gpu-0 (restart 1)"


@pytest.fixture
def on_two_nodes(fleet_of, monkeypatch):
    """Returns a fleet whose second core is on another node, with a clock of its own."""
    monkeypatch.setattr(actor_processes, "is_node_lost", lambda node: False)
    return fleet_of("gpu", place_at=lambda core: Place("there", "other", ahead_ns=1000) if core else Place())


def test_process_on_another_node_has_its_time_and_no_file_or_spare_of_this_one(on_two_nodes, monkeypatch):
    monkeypatch.setattr(actor_processes, "read_host_memory", lambda: HostMemory(1 << 40, 1 << 40))
    monkeypatch.setattr(ray, "wait", lambda asked, timeout: (asked, []))
    monkeypatch.setattr(ray, "get", lambda references: [None, os.getpid()])
    killed = []
    monkeypatch.setattr(ray, "kill", killed.append)
    here, there = on_two_nodes.workers(Role.INFERENCE)
    assert (here.strategy, there.strategy) == (None, "there")
    assert here.config.answering
    assert not there.config.answering
    on_two_nodes.make_spares()
    for dead, stream in ((here, "cam-1"), (there, "cam-2")):
        assert on_two_nodes.note_death(dead) == set(
            on_two_nodes.streams_sharing_process(stream, Role.INFERENCE)
        ) | {stream}
        on_two_nodes.remake_worker(stream, Role.INFERENCE, 77)
    assert killed == [there], "it may be cut off, and live"
    here, there = (on_two_nodes.streams[stream].inference for stream in ("cam-1", "cam-2"))
    assert (here.name, there.name) == ("inference/spare", "inference/gpu-1 (restart 1)")
    assert (here.calls[-1][-1], there.calls[-1][-1]) == (77, 1077)


def test_process_on_another_node_is_ended_there(on_two_nodes, monkeypatch):
    ended = []
    monkeypatch.setattr(actor_processes, "call_on_node", lambda node, _, pids: ended.append((node, pids)))
    monkeypatch.setattr(ray, "wait", lambda asked, timeout, num_returns=1: (asked, []))
    monkeypatch.setattr(ray, "get", lambda _: _NO_PID)
    monkeypatch.setattr(ray, "kill", lambda _: None)
    on_two_nodes.kill_process(on_two_nodes.streams["cam-2"].inference)
    assert ended == [("other", _NO_PID)]
    on_two_nodes.close()
    assert ended[1:] == [("other", [_NO_PID])], "its trainer; those of this node are waited for here"


def test_streams_of_a_node_that_is_gone_move_to_another(on_two_nodes, monkeypatch):
    gone, fleet = [], on_two_nodes
    saved = fleet.streams["cam-2"].config.common.folder.model("cam-2", BASE_VERSION)
    saved.write_bytes(b"saved")
    monkeypatch.setattr(ray, "kill", gone.append)
    monkeypatch.setattr(ray, "wait", lambda asked, timeout: ([], asked))
    monkeypatch.setattr(actor_processes, "is_node_lost", lambda node: node == "other")
    inference, retraining = (fleet.streams["cam-2"].worker(role) for role in Role)
    fleet.end_lost()
    assert gone == [inference, retraining]
    fleet.note_death(inference)
    fleet.remake_worker("cam-2", Role.INFERENCE, 77)
    own, other = fleet.streams["cam-2"], fleet.streams["cam-4"]
    assert (own.config.stream, fleet.home_gpu("cam-2"), own.left_gpu) == ("cam-2", 0, 1)
    assert own.inference is fleet.streams["cam-1"].inference
    assert own.inference.calls[-1] == ("rejoin_stream", own.config, ("stored", b"saved"), 77)
    assert (fleet.home_gpu("cam-4"), other.left_gpu) == (1, None), "until its own worker is started again"
    fleet.change_areas("cam-2", WHOLE_PICTURE)
    assert fleet.home_gpu("cam-2") == 0
    fleet.note_death(retraining)
    for stream in ("cam-2", "cam-4"):
        fleet.remake_worker(stream, Role.RETRAINING, 77)
        assert fleet.streams[stream].retraining is fleet.streams["cam-1"].retraining
    fleet.remake_worker("cam-4", Role.INFERENCE, 77)
    assert other.inference is own.inference
    assert other.weights == ("stored", b"base"), "without a file"


@pytest.fixture
def starting(fleet_of, monkeypatch):
    """Makes a fleet whose given actors die the given number of times before they are ready."""

    def of(process, deaths, undecodable=()):
        fleet = fleet_of(process)
        left = dict(deaths)

        def get(actor):
            name = actor.name.partition(" (restart")[0]
            if left.get(name, 0) > 0:
                left[name] -= 1
                raise RayActorError
            if not actor.name.startswith("inference"):
                return None
            return {
                own.stream: Ready(None, "killed by SIGABRT" if own.stream in undecodable else None)
                for own in actor.config.streams
            }

        for asked in ("confirm_ready", "load_streams"):
            answers = property(lambda made: SimpleNamespace(remote=lambda *_: made))
            monkeypatch.setattr(Made, asked, answers, False)
        monkeypatch.setattr(ray, "wait", lambda asked, num_returns: (asked[:num_returns], None))
        monkeypatch.setattr(ray, "get", get)
        return fleet

    return of


@pytest.mark.parametrize("loads_all", [True, False])
def test_other_actors_load_beside_inference_where_a_run_waits_for_all(starting, monkeypatch, loads_all):
    fleet, made = starting("gpu", {}), []
    monkeypatch.setattr(fleet, "make_remaining_actors", lambda: made.append("others"))
    monkeypatch.setattr(
        ray, "wait", lambda asked, num_returns: (made.append("inference"), (asked[:1], None))[1]
    )
    fleet.wait_ready(loads_all)
    order = ["others", "inference"] if loads_all else ["inference", "others"]
    assert list(dict.fromkeys(made)) == order


@pytest.mark.parametrize("process", ["stream", "gpu"])
def test_actor_that_dies_while_the_run_starts_is_made_again(starting, caplog, process):
    first = {"stream": "inference/cam-1", "gpu": "inference/gpu-0"}[process]
    dying = {first: 2}
    fleet = starting(process, dying)
    assert fleet.wait_ready(loads_all=False) == dict.fromkeys(STREAMS, Ready(None))
    own = fleet.streams
    assert own["cam-1"].inference.name == f"{first} (restart 2)"
    assert (own["cam-3"].inference is own["cam-1"].inference) == (process == "gpu")
    assert sorted(record.args[0] for record in caplog.records) == sorted(
        name for name, deaths in dying.items() for _ in range(deaths)
    )


def test_actor_that_dies_three_times_at_the_start_ends_the_run(starting):
    with pytest.raises(UserError, match="inference/cam-3: its process died 3 times while the run started"):
        starting("stream", {"inference/cam-3": 3}).wait_ready(loads_all=False)


def test_run_without_any_stream_that_can_be_decoded_does_not_begin(starting):
    assert set(starting("gpu", {}, STREAMS[1:]).wait_ready(loads_all=False)) == set(STREAMS)
    with pytest.raises(UserError, match=r"cam-1 since its decoder died \(killed by SIGABRT\)"):
        starting("gpu", {}, STREAMS).wait_ready(loads_all=False)


@pytest.mark.parametrize("role", Role)
def test_removed_camera_is_not_restarted_with_those_of_its_process(fleet_of, role):
    fleet = fleet_of("gpu")
    fleet.remove_stream("cam-1")
    assert [one.id for one in fleet.fleet.streams] == ["cam-2", "cam-3", "cam-4"]
    assert fleet.streams_sharing_process("cam-3", role) == ()
    fleet.note_death(fleet.streams["cam-3"].worker(role))
    fleet.remake_worker("cam-3", role, 77)
    made = fleet.streams["cam-3"].worker(role)
    config = made.config.streams[0] if role is Role.RETRAINING else made.calls[1][1]
    assert (config.stream, config.gpu) == ("cam-3", 0)
