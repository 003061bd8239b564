"""Processes of one training, its parameter server and workers: started, run and supervised."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import ray
from ray.exceptions import RayError

from ekya.core.errors import UserError
from ekya.fleet.policy.names import NodeName
from ekya.fleet.run.training.crew_shares import shares_of, works_at_home
from ekya.fleet.run.training.homecoming import CheckpointThere
from ekya.fleet.run.training.material import Material
from ekya.fleet.run.training.messages import ALWAYS, EpochWork, LessonPlan
from ekya.fleet.run.training.nodes import KnownNodes
from ekya.fleet.run.training.processes import NoProcessError, ProcessSource
from ekya.fleet.run.training.protocol import FleetNode
from ekya.fleet.run.training.server import EpochEnd
from ekya.fleet.run.training.traffic import Kind
from ekya.fleet.run.training.workers import Positions, Shard, WorkerId
from ekya.runtime.actor_errors import in_words

_LOOK_S = 0.2
_PING_EVERY_S = 5.0
SILENT_S = 60.0
"""A process that does not answer a heartbeat for this long counts as dead."""


class Ledger(Protocol):
    """Receives reports of traffic and work."""

    def sent(self, origin: NodeName, target: NodeName, kind: Kind, count: int) -> None:
        """Counts bytes sent from node to node."""

    def did(self, worker: WorkerId, work: EpochWork) -> None:
        """Counts a worker's work in an epoch, complete or not."""


@dataclass(frozen=True, slots=True)
class Dead:
    """A process that died.

    Attributes:
        on: its node.
        worker: None for the parameter server.
        reason: in one line.
    """

    on: FleetNode
    worker: WorkerId | None
    reason: str

    @property
    def node(self) -> NodeName:
        """Name of its node."""
        return self.on.name

    @property
    def what(self) -> str:
        """Its role, in words."""
        return "parameter server" if self.worker is None else f"worker {self.worker.place}"


class CrewLostError(Exception):
    """Processes of the crew died; the others are idle."""

    def __init__(self, dead: Sequence[Dead]) -> None:
        super().__init__("; ".join(f"{one.what} on {one.node}: {one.reason}" for one in dead))
        self.dead = tuple(dead)


@dataclass(slots=True, eq=False)
class _Member:
    """A process of the crew.

    Attributes:
        on: its node as it was when the process was taken; the registry may have changed since.
        has: positions of crops that it has received.
        set_to: its last configuration; None before the first.
    """

    on: FleetNode
    worker: WorkerId | None
    actor: Any
    has: Positions
    set_to: tuple[LessonPlan, Shard | None, int] | None = None
    ping: Any = None
    pinged_s: float = 0.0

    @property
    def node(self) -> NodeName:
        return self.on.name


class Crew:
    """Processes of one training. All learnt state is in snapshots, which the caller keeps.

    Args:
        material: of the training.
        nodes: of the fleet.
        processes: their source.
        ledger: receives reports of all traffic and work.
    """

    def __init__(
        self, material: Material, nodes: KnownNodes, processes: ProcessSource, ledger: Ledger
    ) -> None:
        self._material, self._nodes, self._processes, self._ledger = material, nodes, processes, ledger
        self._members: dict[WorkerId | None, _Member] = {}
        self._start = ray.put(material.task.start)
        self._assembled = 0
        # One process is both the parameter server and the only worker.
        self._alone = False

    def assemble(
        self, plan: LessonPlan, shards: Mapping[WorkerId, Shard], server: NodeName, snapshot: bytes | None
    ) -> float:
        """Places all processes and gives them their crops and the snapshot's weights.

        A process that is in place stays, and receives only the crops that it lacks.

        Returns:
            Validation accuracy of these weights.

        Raises:
            CrewLostError: a process died meanwhile.
            UserError: the start model or the snapshot is invalid.
        """
        self._assembled += 1
        nodes = self._nodes.now()
        alone = works_at_home(nodes, server, shards)
        if alone != self._alone:
            self.release()
            self._alone = alone
        places: dict[WorkerId | None, FleetNode] = {worker: nodes[worker.node] for worker in shards}
        places[None] = nodes[server]
        for who, member in list(self._members.items()):
            if who not in places or places[who].machine_id != member.on.machine_id:
                self._give_back([self._members.pop(who)])
        for who, node in places.items():
            if who not in self._members:
                others = list(self._members.values()) if alone else []
                actor = others[0].actor if others else self._take(node, who)
                self._members[who] = _Member(node, who, actor, np.zeros(0, np.int64))
        shares = shares_of(nodes, server, shards)
        # One process has one share, which the server attaches.
        begun = [self._begin_server(plan, sum(shares.values()) if alone else shares[None])]
        if alone:
            # The worker uses the server's share, which must be attached first.
            self._gather({member: told for member, told in begun if told is not None})
            begun = []
        for number, (worker, shard) in enumerate(sorted(shards.items(), key=lambda item: item[0])):
            begun.append(self._begin_worker(worker, number, plan, shard, shares[worker]))
        self._gather({member: told for member, told in begun if told is not None})
        if snapshot is not None:
            self._ledger.sent(self._material.task.home, server, Kind.CHECKPOINT, len(snapshot))
        member = self._members[None]
        restored = self._gather({member: member.actor.restore.remote(snapshot)})
        return float(restored[member])

    def run_epoch(
        self, epoch: int, interrupted: Callable[[], bool], above: float = ALWAYS
    ) -> tuple[EpochEnd, CheckpointThere | None] | None:
        """Runs an epoch on all shards.

        Args:
            epoch: number of epochs done.
            interrupted: polled; True ends the epoch early.
            above: a checkpoint is made only for an accuracy above this.

        Returns:
            The epoch's result, and its checkpoint on the server's node if there is one; None if interrupted.

        Raises:
            CrewLostError: a process died meanwhile.
        """
        server = self._members[None]
        workers = {who: member for who, member in self._members.items() if who is not None}
        token = (self._assembled, epoch)
        self._gather({server: server.actor.begin_epoch.remote(token, tuple(sorted(workers)))})
        asked = {
            member: member.actor.run_epoch.remote(server.actor, token, epoch) for member in workers.values()
        }
        told: dict[_Member, EpochWork] = {}
        try:
            self._gather(asked, told, interrupted)
            if interrupted():
                return None
            ended, snapshot = server.actor.end_epoch.remote(above)
            end: EpochEnd = self._gather({server: ended})[server]
        finally:
            self._tell_work(server, {who: told[member] for who, member in workers.items() if member in told})
        result = end.result
        if not end.kept:
            return end, None
        return end, CheckpointThere(
            server.node,
            result.epoch,
            result.validation_accuracy,
            lambda: bytes(ray.get(snapshot, timeout=SILENT_S)),
        )

    def pids(self) -> dict[tuple[NodeName, str], int]:
        """Returns the process ids by node and role, as in ``Dead.what``."""
        pids = {}
        for member in list(self._members.values()):
            with suppress(RayError):
                what = Dead(member.on, member.worker, "").what
                pids[member.node, what] = ray.get(member.actor.pid.remote(), timeout=SILENT_S)
        return pids

    def node_is_there(self, node: str) -> bool:
        """Returns whether the node is alive, so that another attempt makes sense."""
        return self._processes.is_there(node)

    def release(self) -> None:
        """Gives all processes back for other trainings."""
        self._give_back(self._members.values())
        self._members.clear()

    def end(self) -> None:
        """Ends all processes, also busy ones."""
        for member in self._members.values():
            self._processes.end(member.actor)
        self._members.clear()

    def _take(self, node: FleetNode, who: WorkerId | None) -> Any:
        try:
            return self._processes.take(node)
        except NoProcessError as error:
            raise CrewLostError([Dead(node, who, str(error))]) from error

    def _give_back(self, members: Iterable[_Member]) -> None:
        """Gives each process back once, also one with two roles."""
        for actor, on in {member.actor: member.on for member in members}.items():
            self._processes.give_back(on, actor)

    def _tell_work(self, server: _Member, told: Mapping[WorkerId, EpochWork]) -> None:
        """Reports an epoch's traffic and work. The server's count includes workers that have died."""
        exchanged = {who: (work.pushed, work.pulled) for who, work in told.items()}
        if self._members.get(None) is server:
            with suppress(RayError):
                exchanged = ray.get(server.actor.exchanged.remote(), timeout=SILENT_S)
        for who, (pushed, pulled) in exchanged.items():
            self._ledger.sent(who.node, server.node, Kind.PUSHED, pushed)
            self._ledger.sent(server.node, who.node, Kind.PULLED, pulled)
        for who, work in told.items():
            self._ledger.did(who, work)

    def _begin_server(self, plan: LessonPlan, share_milli: int) -> tuple[_Member, Any]:
        member = self._members[None]
        if member.set_to == (plan, None, share_milli):
            return member, None
        if member.set_to is None:
            home, validation = self._material.task.home, self._material.validation.labelled
            self._ledger.sent(home, member.node, Kind.MODEL, len(self._material.task.start))
            self._ledger.sent(home, member.node, Kind.DATA, validation.nbytes)
        member.set_to = (plan, None, share_milli)
        return member, member.actor.serve.remote(self._start, plan, self._material.validation, share_milli)

    def _begin_worker(
        self, worker: WorkerId, number: int, plan: LessonPlan, shard: Shard, share_milli: int
    ) -> tuple[_Member, Any]:
        member = self._members[worker]
        anew = member.set_to is None
        if not anew and member.set_to == (plan, shard, share_milli):
            return member, None
        missing = shard.positions[~np.isin(shard.positions, member.has)]
        if anew and not self._alone:
            self._ledger.sent(
                self._material.task.home, member.node, Kind.MODEL, len(self._material.task.start)
            )
        for origin, count in self._material.sent(missing).items():
            self._ledger.sent(origin, member.node, Kind.DATA, count)
        member.has, member.set_to = np.union1d(member.has, missing), (plan, shard, share_milli)
        told = member.actor.work.remote(
            worker,
            number,
            self._start,
            plan,
            self._material.epochs(plan),
            shard,
            (missing, self._material.crops.take(missing)),
            anew,
            None if self._alone else share_milli,
        )
        return member, told

    def _gather(
        self,
        asked: Mapping[_Member, Any],
        answers: dict[_Member, Any] | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> dict[_Member, Any]:
        """Collects the replies; in an epoch that is interrupted they come soon.

        Args:
            asked: reference to each reply.
            answers: receives the replies, also those before an error.
            interrupted: polled.

        Raises:
            CrewLostError: a process died.
            UserError: a process found invalid input.
        """
        answers = {} if answers is None else answers
        open_ = {reference: member for member, reference in asked.items()}
        dead: dict[_Member, str] = {}
        aborted = False
        while open_ and not dead:
            ready, _ = ray.wait(list(open_), timeout=_LOOK_S)
            for reference in ready:
                member = open_.pop(reference)
                try:
                    answers[member] = ray.get(reference)
                except RayError as error:
                    _raise_complaint(error)
                    dead |= self._dead(member, error)
            dead |= self._silent()
            if not aborted and interrupted():
                aborted = True
                self._members[None].actor.abort.remote()
        if dead:
            self._bury(dead)
            # The epoch is aborted, so the survivors end within a step.
            ended, _ = ray.wait(list(open_), num_returns=len(open_), timeout=SILENT_S) if open_ else ([], [])
            for reference in ended:
                with suppress(RayError):
                    answers[open_[reference]] = ray.get(reference)
            raise CrewLostError([Dead(one.on, one.worker, reason) for one, reason in dead.items()])
        return answers

    def _silent(self) -> dict[_Member, str]:
        """Returns members without a heartbeat for ``SILENT_S``; sends heartbeat requests periodically."""
        now_s = time.monotonic()
        silent = {}
        for member in self._members.values():
            if member.ping is None or ray.wait([member.ping], timeout=0)[0]:
                if now_s - member.pinged_s > _PING_EVERY_S:
                    member.ping, member.pinged_s = member.actor.pid.remote(), now_s
            elif now_s - member.pinged_s > SILENT_S:
                silent[member] = f"no answer for {SILENT_S:g} s"
        return silent

    def _dead(self, suspect: _Member, error: RayError) -> dict[_Member, str]:
        """Returns which members are dead after an error in a reply, with the reasons."""
        pings = {member: member.actor.pid.remote() for member in self._members.values()}
        ray.wait(list(pings.values()), num_returns=len(pings), timeout=SILENT_S)
        dead = {}
        for member, ping in pings.items():
            try:
                ray.get(ping, timeout=0)
            except RayError as gone:
                dead[member] = in_words(gone)
        # All processes are alive, so the suspect failed at its task.
        return dead or {suspect: in_words(error)}

    def _bury(self, dead: Collection[_Member]) -> None:
        for member in dead:
            del self._members[member.worker]
            self._processes.end(member.actor)
        if None in self._members:
            self._members[None].actor.abort.remote()


def _raise_complaint(error: RayError) -> None:
    """Raises an error that the user can correct; returns on any other."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, UserError):
        raise UserError(str(cause)) from error
