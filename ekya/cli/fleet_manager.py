"""``ekya fleet manager``: serves Deep-Edge's manager over REST, on a Ray cluster."""

import threading
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import command
from ekya.cli.output import Output
from ekya.core.errors import UserError
from ekya.fleet.policy.names import NodeName
from ekya.fleet.policy.places import Node

if TYPE_CHECKING:
    from ekya.fleet.fitting.measured import MeasuredModels
    from ekya.fleet.policy.deep_edge.profile import EdgeWork, ProfilePoint, Tried
    from ekya.fleet.run.cluster import Cluster
    from ekya.fleet.run.deep_edge.folder_store import FolderStore
    from ekya.fleet.run.training.trainer import RayFleetTrainer


@dataclass(frozen=True, kw_only=True)
class ManagerConfig:
    """Options of ``ekya fleet manager``."""

    stores: Annotated[Path, typer.Argument(metavar="STORES", help="Stores of samples and weights (YAML).")]
    points: Annotated[Path, typer.Option(metavar="FILE", help="Data points of ekya fleet profile.")]
    solver: Annotated[str, typer.Option(metavar="NAME", help="deep-edge or deep-edge-joint.")] = "deep-edge"
    host: Annotated[
        str, typer.Option(help="Address to listen at. Every client that reaches it can start trainings.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 8471
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT|auto", help="Ray cluster to train on; default: a new local one."),
    ] = None
    emulate: Annotated[
        str, typer.Option(metavar="NAME=PART,...", help="Ray nodes on this machine, each a part of a core.")
    ] = ""
    kind: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Type of this machine; POST /profiler then measures it."),
    ] = None
    silent: Annotated[
        float,
        typer.Option(min=1.0, metavar="SECONDS", help="Timeout after which a silent machine counts as dead."),
    ] = 30.0
    shares: opt.Shares = "auto"


@command(
    ManagerConfig,
    "ekya fleet manager stores.yaml --points nano.parquet",
    "ekya fleet manager stores.yaml --points nano.parquet --address auto --host 0.0.0.0 --port 8471",
    "ekya fleet manager stores.yaml --points nano.parquet --emulate east=0.6,west=0.3",
    "curl -X POST 'http://127.0.0.1:8471/launcher?store=cam-1'",
)
def manager(config: ManagerConfig, output: Output) -> None:
    """Serve Deep-Edge's manager over REST: it spreads updates of models over the machines of a Ray cluster.

    Machines make themselves known by ekya fleet worker, or by curl (docs/fleet/deep-edge.md). Updates are
    asked for over REST; a store with trigger: {new_samples: 200} also gets one after that many new pictures.
    """
    from ekya.fleet.fitting.measured import measured_models
    from ekya.fleet.fitting.points_file import read_points, read_tried
    from ekya.fleet.policy.deep_edge.stopping import StopRule
    from ekya.fleet.policy.registry import EDGE_POLICIES, POLICIES, Terms
    from ekya.fleet.run.cluster import open_cluster
    from ekya.fleet.run.deep_edge.folder_store import read_stores
    from ekya.fleet.run.deep_edge.launcher import Launcher
    from ekya.fleet.run.deep_edge.manager import EdgeManager
    from ekya.fleet.run.deep_edge.rest import Offline, application, serve
    from ekya.fleet.run.deep_edge.watch import StoreWatch
    from ekya.fleet.run.training.processes import Processes
    from ekya.fleet.run.training.trainer import RayFleetTrainer
    from ekya.gpu.backends.registry import choose_backend

    emulated = read_emulated(config.emulate)
    if config.solver not in EDGE_POLICIES:
        raise UserError(f"--solver {config.solver}: there is none; choose one of {', '.join(EDGE_POLICIES)}")
    if config.address is not None and emulated:
        raise UserError("--emulate makes nodes of its own; leave --address out")
    points = read_points(config.points)
    stores = read_stores(config.stores)
    works = {tried.work for tried in read_tried(config.points)}
    _require_same_work(config, works, stores.values())
    work = None if config.kind is None else _work_of(config.kind, config.points, works)
    models = measured_models(points, str(config.points))
    terms = Terms(estimates=models.estimates, limits=models.limits, shares_milli=models.shares_milli)
    policy = POLICIES[config.solver](terms)
    _say_points(output, config.points, models)
    chosen = choose_backend(config.shares)
    kept = _PointsFile(config.points)
    with ExitStack() as stack:
        backend = stack.enter_context(chosen.backend.open(1))
        cluster = stack.enter_context(open_cluster(config.address, emulated))
        output.say(f"Nodes: {', '.join(sorted(cluster.nodes()))}.")
        trainer = RayFleetTrainer(cluster.nodes(), Processes(backend))
        stack.callback(trainer.close)
        server = EdgeManager(policy, Launcher(trainer), StopRule(), config.silent, learned=kept.add)
        stack.callback(server.close)
        watches = []
        for store in stores.values():
            if store.trigger is not None:
                watches.append(StoreWatch(store, store.trigger, server).look)
                output.say(
                    f"{store.name}: updated by itself from {store.trigger.samples} new pictures on; "
                    f"{store.new_samples()} are there."
                )
        serve(
            application(
                server,
                stores,
                None if work is None else Offline(work, backend, kept.add),
                lambda node: _admit(node, trainer, cluster, models),
                watches,
            ),
            config.host,
            config.port,
            lambda _: output.say(f"Reached at http://{config.host}:{config.port}; Ctrl-C ends it."),
        )


def read_emulated(text: str) -> dict[NodeName, int]:
    """Parses ``--emulate``: NAME=PART,... in parts of a core; returns thousandths.

    Raises:
        UserError: the text has another form.
    """
    nodes: dict[NodeName, int] = {}
    for word in filter(None, text.split(",")):
        name, _, part = word.partition("=")
        try:
            share_milli = round(1000 * float(part))
        except (ValueError, OverflowError):
            share_milli = 0
        if not name or not 0 < share_milli <= 1000 or name in nodes:
            raise UserError(f"--emulate {text}: write NAME=PART,... with parts of one, as east=0.6,west=0.3")
        nodes[NodeName(name)] = share_milli
    return nodes


@dataclass(frozen=True, slots=True)
class _PointsFile:
    """File of data points with a lock, since several threads add to it."""

    path: Path
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, points: "Sequence[ProfilePoint]", tried: "Sequence[Tried]" = ()) -> int:
        """Adds points; returns the number of points in the file."""
        from ekya.fleet.fitting.points_file import add_points

        with self.lock:
            return add_points(self.path, points, tried)


def _say_points(output: Output, path: Path, models: "MeasuredModels") -> None:
    for kind, count in models.points.items():
        output.say(f"{kind}: {count} points in {path}.")
    for kind in models.unknown_updates:
        output.say(
            f"{kind}: no update of the parameter server was measured yet; it is planned as if one took "
            "no time, and the first training without a failure adds what it took to the points."
        )


def _work_of(kind: str, points: Path, works: "Collection[EdgeWork]") -> "EdgeWork":
    """Returns the work that this machine is profiled with: the same as earlier for its kind."""
    own = next((work for work in works if work.kind == kind), None)
    if own is None:
        known = ", ".join(sorted({work.kind for work in works})) or "no kind"
        raise UserError(f"--kind {kind}: {points} has {known}; profile it with ekya fleet profile")
    return own


def _require_same_work(
    config: ManagerConfig, works: "Collection[EdgeWork]", stores: "Collection[FolderStore]"
) -> None:
    for store in stores:
        own = (store.model.architecture, store.spec.side, store.spec.trainable_blocks)
        others = {(work.architecture, work.side, work.trainable_blocks) for work in works} - {own}
        for architecture, side, blocks in others:
            raise UserError(
                f"{config.stores}: stores.{store.name} trains {own[2]} blocks of a {own[0]} on {own[1]} "
                f"pixels, but {config.points} was measured with {blocks} of a {architecture} on {side}; "
                "profile with what you train"
            )


def _admit(node: Node, trainer: "RayFleetTrainer", cluster: "Cluster", models: "MeasuredModels") -> None:
    there = cluster.nodes()
    if node.name not in there:
        known = ", ".join(sorted(there)) or "none"
        raise UserError(f"node={node.name}: there is no such Ray node; there is {known}")
    if node.capacity.get("trains") and node.kind not in models.points:
        known = ", ".join(models.points)
        raise UserError(f"kind={node.kind}: none was profiled; there are points of {known}")
    trainer.know(there[node.name])
