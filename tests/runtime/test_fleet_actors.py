"""Which streams' inference shares a process, and what is made when a worker has died."""

from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import RayActorError

from ekya.config import load_fleet
from ekya.core.events import Role
from ekya.core.ids import BASE_VERSION, ModelVersion
from ekya.errors import UserError
from ekya.placement.homes import InferenceProcess
from ekya.runtime import fleet_actors
from ekya.runtime.fleet_actors import FleetActors
from ekya.runtime.orders import ActorOrders
from ekya.shipped import shipped_path

STREAMS = ("cam-1", "cam-2", "cam-3", "cam-4")


class Made:
    """An actor that was made: its name, its environment and what it was given; calls are kept."""

    def __init__(self, _kind, name, environment, _gpu_part, orders):
        self.name, self.environment, self.orders = name, environment, orders
        self.calls = []

    def __getattr__(self, method):
        return SimpleNamespace(remote=lambda *arguments: self.calls.append((method, *arguments)))


@pytest.fixture
def fleet_of(monkeypatch):
    monkeypatch.setattr(fleet_actors, "make_actor", Made)
    monkeypatch.setattr(ray, "put", lambda weights: ("stored", weights))
    monkeypatch.setattr(ray, "get", lambda reference: reference[1])
    shipped = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"), {"gpus": 2.0})
    shares = SimpleNamespace(actor_env=lambda job: {"GPU": str(job.gpu), "JOB": job.name})

    def made(process, server=""):
        inference = shipped.inference.model_copy(update={"process": InferenceProcess(process)})
        fleet = shipped.model_copy(update={"inference": inference})
        orders = ActorOrders(None, fleet, 0, shares, "cpu", (0, 1, 0, 1), server=server)
        return FleetActors(orders, "ekya", dict.fromkeys(STREAMS, (b"base", BASE_VERSION)))

    return made


def who_is_where(fleet):
    return {made.name: [own.stream for own in made.orders.streams] for made in fleet.inferences}


def test_each_stream_has_a_process_of_its_own(fleet_of):
    fleet = fleet_of("stream")
    assert who_is_where(fleet) == {f"inference/{stream}": [stream] for stream in STREAMS}
    assert fleet.beside("cam-1") == ()


def test_streams_of_one_gpu_share_a_process_there(fleet_of):
    fleet = fleet_of("gpu")
    assert who_is_where(fleet) == {
        "inference/gpu-0": ["cam-1", "cam-3"],
        "inference/gpu-1": ["cam-2", "cam-4"],
    }
    assert fleet.beside("cam-2") == ("cam-4",)
    assert [made.orders.gpu for made in fleet.inferences] == [0, 1]
    assert fleet.inferences[1].environment == {"GPU": "1", "JOB": "inference/gpu-1"}
    assert len({own.retraining.name for own in fleet.streams.values()}) == 4


def test_actors_are_named_after_their_server_where_there_are_several(fleet_of):
    fleet = fleet_of("gpu", "west")
    assert fleet.scheduler.name == "west/scheduler"
    assert [made.name for made in fleet.inferences] == ["west/inference/gpu-0", "west/inference/gpu-1"]
    assert fleet.streams["cam-2"].retraining.name == "west/retraining/cam-2"
    fleet.make_again("cam-2", Role.RETRAINING, 77)
    assert fleet.streams["cam-2"].retraining.name == "west/retraining/cam-2 (restart 1)"


def test_a_shared_process_is_made_again_once_and_every_stream_joins_with_what_it_served(fleet_of):
    fleet = fleet_of("gpu")
    dead = fleet.streams["cam-1"].inference
    fleet.streams["cam-3"].weights, fleet.streams["cam-3"].version = ("stored", b"newer"), ModelVersion(4)
    fleet.has_died(dead)
    for stream in ("cam-1", "cam-3"):
        fleet.make_again(stream, Role.INFERENCE, 77)
    made = fleet.streams["cam-1"].inference
    assert made is fleet.streams["cam-3"].inference is not dead
    assert (made.name, made.orders.streams) == ("inference/gpu-0 (restart 1)", ())
    joined = [(orders.stream, orders.weights, orders.version, at) for _, orders, at in made.calls[1:]]
    assert joined == [("cam-1", b"base", 0, 77), ("cam-3", b"newer", 4, 77)]
    assert fleet.streams["cam-2"].inference.name == "inference/gpu-1"


def test_a_stream_that_failed_by_itself_joins_the_process_where_it_was(fleet_of):
    for process in ("stream", "gpu"):
        fleet = fleet_of(process)
        before = fleet.streams["cam-1"].inference
        fleet.make_again("cam-1", Role.INFERENCE, 77)
        assert fleet.streams["cam-1"].inference is before
        assert [call[0] for call in before.calls] == ["process", "join"]


def test_a_retraining_worker_is_made_again_by_itself(fleet_of):
    fleet = fleet_of("gpu")
    inference, retraining = fleet.streams["cam-1"].inference, fleet.streams["cam-1"].retraining
    fleet.make_again("cam-1", Role.RETRAINING, 77)
    assert fleet.streams["cam-1"].inference is inference
    assert fleet.streams["cam-1"].retraining is not retraining
    assert fleet.streams["cam-1"].retraining.calls[-1] == ("begin", 77)


@pytest.fixture
def starting(fleet_of, monkeypatch):
    """A fleet of which these actors die, so many times each, before they are ready."""

    def of(process, deaths):
        fleet = fleet_of(process)
        left = dict(deaths)

        def get(actor):
            name = actor.name.partition(" (restart")[0]
            if left.get(name, 0) > 0:
                left[name] -= 1
                raise RayActorError
            return {own.stream: "ready" for own in getattr(actor.orders, "streams", ())}

        monkeypatch.setattr(Made, "ready", property(lambda made: SimpleNamespace(remote=lambda: made)), False)
        monkeypatch.setattr(ray, "wait", lambda asked, num_returns: (asked[:num_returns], None))
        monkeypatch.setattr(ray, "get", get)
        return fleet

    return of


@pytest.mark.parametrize("process", ["stream", "gpu"])
def test_who_dies_while_the_run_starts_is_made_again(starting, caplog, process):
    first = {"stream": "inference/cam-1", "gpu": "inference/gpu-0"}[process]
    dying = {first: 2, "retraining/cam-2": 1, "micro-profiler": 2, "scheduler": 1}
    fleet = starting(process, dying)
    assert fleet.wait_ready() == dict.fromkeys(STREAMS, "ready")
    own = fleet.streams
    assert own["cam-1"].inference.name == f"{first} (restart 2)"
    assert own["cam-2"].retraining.name == "retraining/cam-2 (restart 1)"
    assert (fleet.preparation.name, fleet.scheduler.name) == (
        "micro-profiler (restart 2)",
        "scheduler (restart 1)",
    )
    assert (own["cam-3"].inference is own["cam-1"].inference) == (process == "gpu")
    assert sorted(record.args[0] for record in caplog.records) == sorted(
        name for name, deaths in dying.items() for _ in range(deaths)
    )


def test_who_dies_three_times_while_the_run_starts_ends_it_with_a_sentence(starting):
    with pytest.raises(UserError, match="retraining/cam-3: its process died 3 times while the run started"):
        starting("stream", {"retraining/cam-3": 3}).wait_ready()
