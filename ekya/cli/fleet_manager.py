"""``ekya fleet manager``: serves Deep-Edge's manager over REST, on a Ray cluster."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ekya.core.errors import UserError
from ekya.fleet.fitting.measured import MeasuredModels, measured_models
from ekya.fleet.fitting.points_file import add_points, read_points, read_tried
from ekya.fleet.policy.deep_edge.policy import EdgePolicy
from ekya.fleet.policy.deep_edge.profile import EdgeWork, ProfilePoint, Tried
from ekya.fleet.policy.deep_edge.solvers import SOLVERS, of_measured_shares
from ekya.fleet.policy.deep_edge.stopping import StopRule
from ekya.fleet.policy.names import NodeName
from ekya.fleet.policy.places import Node
from ekya.fleet.run.deep_edge.cluster import Nodes, edge_cluster
from ekya.fleet.run.deep_edge.folder_store import FolderStore, read_stores
from ekya.fleet.run.deep_edge.launcher import Launcher
from ekya.fleet.run.deep_edge.manager import EdgeManager
from ekya.fleet.run.deep_edge.rest import Offline, application, serve
from ekya.fleet.run.deep_edge.watch import StoreWatch
from ekya.fleet.run.training.processes import Processes
from ekya.fleet.run.training.trainer import RayFleetTrainer
from ekya.gpu.backends.registry import choose_backend


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """Options of the command line.

    Attributes:
        stores: file of data stores.
        points: file of data points.
        solver: name of a solver in ``SOLVERS``.
        host, port: address to listen at.
        address: address of a Ray cluster, or None.
        emulated: nodes to emulate on this machine, each with its share of it in thousandths.
        kind: kind of this machine, which allows profiling it over REST; None forbids it.
        shares: share backend of the trainings.
        silent_s: seconds without a message after which a machine counts as dead.
    """

    stores: Path
    points: Path
    solver: str
    host: str
    port: int
    address: str | None
    emulated: Mapping[NodeName, int]
    kind: str | None
    shares: str
    silent_s: float


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


def run_manager(options: ManagerOptions, console: Console) -> None:
    """Serves until interrupted; then ends running trainings.

    Raises:
        UserError: a file is missing or invalid, there are too few points, there is no cluster, or the port is
            in use.
    """
    if options.solver not in SOLVERS:
        raise UserError(f"--solver {options.solver}: there is none; choose one of {', '.join(SOLVERS)}")
    if options.address is not None and options.emulated:
        raise UserError("--emulate makes nodes of its own; leave --address out")
    points = read_points(options.points)
    stores = read_stores(options.stores)
    _require_same_work(options, stores.values())
    work = _work(options)
    models = measured_models(points, str(options.points))
    policy = _policy(options.solver, models)
    _tell(console, options, models)
    chosen = choose_backend(options.shares)
    kept = _Kept(options.points)
    with ExitStack() as stack:
        backend = stack.enter_context(chosen.backend.open(1))
        nodes = stack.enter_context(edge_cluster(options.address, options.emulated))
        console.print(f"Nodes: {', '.join(sorted(nodes()))}.", highlight=False, soft_wrap=True)
        trainer = RayFleetTrainer(nodes(), Processes(backend))
        stack.callback(trainer.close)
        manager = EdgeManager(
            policy,
            Launcher(trainer),
            StopRule(),
            options.silent_s,
            learned=lambda points: kept.add(points, ()),
        )
        stack.callback(manager.close)
        offline = None if work is None else Offline(work, backend, kept.add)

        def admit(node: Node) -> None:
            _admit(node, trainer, nodes, models)

        watches = [
            StoreWatch(store, store.trigger, manager).look
            for store in stores.values()
            if store.trigger is not None
        ]
        _tell_triggers(console, stores.values())
        serve(
            application(manager, stores, offline, admit, watches),
            options.host,
            options.port,
            lambda _: console.print(
                f"Reached at http://{options.host}:{options.port}; Ctrl-C ends it.", highlight=False
            ),
        )


@dataclass(frozen=True, slots=True)
class _Kept:
    """File of data points with a lock, since several threads add to it."""

    path: Path
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, points: Sequence[ProfilePoint], tried: Sequence[Tried]) -> int:
        """Adds points; returns the number of points in the file."""
        with self.lock:
            return add_points(self.path, points, tried)


def _policy(name: str, models: MeasuredModels) -> EdgePolicy:
    solver = of_measured_shares(SOLVERS[name], models.shares_milli)
    return EdgePolicy(name, solver, models.estimates, models.limits)


def _tell(console: Console, options: ManagerOptions, models: MeasuredModels) -> None:
    for kind, count in models.points.items():
        console.print(f"{kind}: {count} points in {options.points}.", highlight=False, soft_wrap=True)
    for kind in models.unknown_updates:
        console.print(
            f"{kind}: no update of the parameter server was measured yet; it is planned as if one took "
            "no time, and the first training without a failure adds what it took to the points.",
            highlight=False,
            soft_wrap=True,
        )


def _tell_triggers(console: Console, stores: Iterable[FolderStore]) -> None:
    for store in stores:
        if store.trigger is not None:
            console.print(
                f"{store.name}: updated by itself from {store.trigger.samples} new pictures on; "
                f"{store.new_samples()} are there.",
                highlight=False,
                soft_wrap=True,
            )


def _works(path: Path) -> set[EdgeWork]:
    return {tried.work for tried in read_tried(path)}


def _work(options: ManagerOptions) -> EdgeWork | None:
    """Returns the work that this machine is profiled with: the same as earlier for its kind."""
    if options.kind is None:
        return None
    works = _works(options.points)
    own = [work for work in works if work.kind == options.kind]
    if not own:
        known = ", ".join(sorted({work.kind for work in works})) or "no kind"
        raise UserError(
            f"--kind {options.kind}: {options.points} has {known}; profile it with ekya fleet profile"
        )
    return own[0]


def _require_same_work(options: ManagerOptions, stores: Iterable[FolderStore]) -> None:
    works = _works(options.points)
    for store in stores:
        own = (store.model.architecture, store.spec.side, store.spec.trainable_blocks)
        others = {(work.architecture, work.side, work.trainable_blocks) for work in works} - {own}
        for architecture, side, blocks in others:
            raise UserError(
                f"{options.stores}: stores.{store.name} trains {own[2]} blocks of a {own[0]} on {own[1]} "
                f"pixels, but {options.points} was measured with {blocks} of a {architecture} on {side}; "
                "profile with what you train"
            )


def _admit(node: Node, trainer: RayFleetTrainer, nodes: Nodes, models: MeasuredModels) -> None:
    there = nodes()
    if node.name not in there:
        known = ", ".join(sorted(there)) or "none"
        raise UserError(f"node={node.name}: there is no such Ray node; there is {known}")
    if node.capacity.get("trains") and node.kind not in models.points:
        known = ", ".join(models.points)
        raise UserError(f"kind={node.kind}: none was profiled; there are points of {known}")
    trainer.know(there[node.name])
