"""Processes of one training, its parameter server and workers: started, run and supervised."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import numpy as np

from ekya.core.errors import UserError
from ekya.fleet.policy.places import NodeName
from ekya.fleet.run.calls import CallError, Handle
from ekya.fleet.run.training.homecoming import RemoteEpochCheckpoint
from ekya.fleet.run.training.material import ALWAYS, LessonPlan, Material
from ekya.fleet.run.training.protocol import (
    FleetNode,
    NoProcessError,
    ProcessSource,
    shares_of,
    works_at_home,
)
from ekya.fleet.run.training.server import ServedEpoch, server_of
from ekya.fleet.run.training.workers import EpochWork, PayloadKind, Positions, Shard, WorkerId

_LOOK_S = 0.2
_PING_EVERY_S = 5.0
SILENT_S = 60.0
"""A process that does not answer a heartbeat for this long counts as dead."""

_SILENT = f"no answer for {SILENT_S:g} s"


class Ledger(Protocol):
    """Receives reports of traffic and work."""

    def count_sent(self, origin: NodeName, target: NodeName, kind: PayloadKind, count: int) -> None:
        """Counts bytes sent from node to node."""

    def count_work(self, worker: WorkerId, work: EpochWork) -> None:
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
    process: Handle
    has: Positions
    set_to: tuple[LessonPlan, Shard | None, int] | None = None
    ping: Future[Any] | None = None
    pinged_s: float = 0.0

    @property
    def node(self) -> NodeName:
        return self.on.name


class Crew:
    """Processes of one training. All learnt state is in snapshots, which the caller keeps.

    Args:
        material: of the training.
        nodes: of the fleet; may change meanwhile.
        processes: their source.
        ledger: receives reports of all traffic and work.
        now_s: a clock that is never set.
    """

    def __init__(
        self,
        material: Material,
        nodes: Mapping[NodeName, FleetNode],
        processes: ProcessSource,
        ledger: Ledger,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._material, self._nodes, self._processes, self._ledger = material, nodes, processes, ledger
        self._now_s = now_s
        self._members: dict[WorkerId | None, _Member] = {}
        # Of epochs: a process that was given back never answers with another training's checkpoint.
        self._token = uuid4().hex
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
        # A copy: a node that comes or goes meanwhile counts from the next assembly on.
        nodes = dict(self._nodes)
        alone = works_at_home(nodes, server, shards)
        if alone != self._alone:
            self.release_processes()
            self._alone = alone
        places: dict[WorkerId | None, FleetNode] = {worker: nodes[worker.node] for worker in shards}
        places[None] = nodes[server]
        for who, member in list(self._members.items()):
            if who not in places or places[who].machine_id != member.on.machine_id:
                self._give_back([self._members.pop(who)])
        for who, node in places.items():
            if who not in self._members:
                others = list(self._members.values()) if alone else []
                process = others[0].process if others else self._take(node, who)
                self._members[who] = _Member(node, who, process, np.zeros(0, np.int64))
        shares = shares_of(nodes, server, shards)
        # One process has one share, which the server attaches.
        begun = self._begin_server(plan, sum(shares.values()) if alone else shares[None])
        if alone:
            # The worker uses the server's share, which must be attached first.
            self._gather(begun)
            begun = {}
        for number, (worker, shard) in enumerate(sorted(shards.items(), key=lambda item: item[0])):
            begun |= self._begin_worker(worker, number, plan, shard, shares[worker])
        self._gather(begun)
        if snapshot is not None:
            self._ledger.count_sent(self._material.task.home, server, PayloadKind.CHECKPOINT, len(snapshot))
        member = self._members[None]
        restored = self._gather({member: server_of(member.process).call("restore_snapshot", snapshot)})
        return float(restored[member])

    def run_epoch(
        self, epoch: int, interrupted: Callable[[], bool], above: float = ALWAYS
    ) -> tuple[ServedEpoch, RemoteEpochCheckpoint | None] | None:
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
        # A worker of an aborted attempt may still push; the server ignores its token, which is another.
        token = (self._token, self._assembled, epoch)
        self._gather({server: server_of(server.process).call("begin_epoch", token, tuple(sorted(workers)))})
        asked = {
            member: member.process.call("run_epoch", server.process, token, epoch)
            for member in workers.values()
        }
        told: dict[_Member, EpochWork] = {}
        try:
            self._gather(asked, told, interrupted)
            if interrupted():
                return None
            end: ServedEpoch = self._gather({server: server_of(server.process).call("end_epoch", above)})[
                server
            ]
        finally:
            self._tell_work(server, {who: told[member] for who, member in workers.items() if member in told})
        result = end.result
        if not end.kept:
            return end, None
        return end, RemoteEpochCheckpoint(
            server.node,
            result.epoch,
            result.validation_accuracy,
            lambda: bytes(server_of(server.process).call("fetch_snapshot", token).result(SILENT_S)),
        )

    def pids(self) -> dict[tuple[NodeName, str], int]:
        """Returns the process ids by node and role, as in ``Dead.what``."""
        pids = {}
        # A copy, since the training's own thread may replace members meanwhile.
        for member in list(self._members.values()):
            with suppress(CallError, TimeoutError):
                what = Dead(member.on, member.worker, "").what
                pids[member.node, what] = member.process.call("pid").result(SILENT_S)
        return pids

    def is_there(self, machine_id: str) -> bool:
        """Returns whether the machine is alive, so that another attempt makes sense."""
        return self._processes.is_there(machine_id)

    def release_processes(self) -> None:
        """Gives all processes back for other trainings."""
        self._give_back(self._members.values())
        self._members.clear()

    def end_processes(self) -> None:
        """Ends all processes, also busy ones."""
        for member in self._members.values():
            member.process.end_process()
        self._members.clear()

    def _take(self, node: FleetNode, who: WorkerId | None) -> Handle:
        try:
            return self._processes.take_process(node)
        except NoProcessError as error:
            raise CrewLostError([Dead(node, who, str(error))]) from error

    def _give_back(self, members: Iterable[_Member]) -> None:
        """Gives each process back once, also one with two roles."""
        for process, on in {member.process: member.on for member in members}.items():
            self._processes.give_back_process(on, process)

    def _tell_work(self, server: _Member, told: Mapping[WorkerId, EpochWork]) -> None:
        """Reports an epoch's traffic and work. The server's count includes workers that have died."""
        exchanged = {who: (work.pushed, work.pulled) for who, work in told.items()}
        if self._members.get(None) is server:
            with suppress(CallError, TimeoutError):
                exchanged = server_of(server.process).call("exchanged_bytes").result(SILENT_S)
        for who, (pushed, pulled) in exchanged.items():
            self._ledger.count_sent(who.node, server.node, PayloadKind.PUSHED, pushed)
            self._ledger.count_sent(server.node, who.node, PayloadKind.PULLED, pulled)
        for who, work in told.items():
            self._ledger.count_work(who, work)

    def _begin_server(self, plan: LessonPlan, share_milli: int) -> dict[_Member, Future[Any]]:
        member = self._members[None]
        if member.set_to == (plan, None, share_milli):
            return {}
        start, validation = None, None
        if member.set_to is None:
            task, validation = self._material.task, self._material.validation
            start = task.start
            self._ledger.count_sent(task.home, member.node, PayloadKind.MODEL, len(start))
            self._ledger.count_sent(task.home, member.node, PayloadKind.DATA, validation.labelled.nbytes)
        member.set_to = (plan, None, share_milli)
        return {member: member.process.call("serve_training", start, plan, validation, share_milli)}

    def _begin_worker(
        self, worker: WorkerId, number: int, plan: LessonPlan, shard: Shard, share_milli: int
    ) -> dict[_Member, Future[Any]]:
        member = self._members[worker]
        anew = member.set_to is None
        if member.set_to == (plan, shard, share_milli):
            return {}
        missing = shard.positions[~np.isin(shard.positions, member.has)]
        start = self._material.task.start if anew and not self._alone else None
        if start is not None:
            self._ledger.count_sent(self._material.task.home, member.node, PayloadKind.MODEL, len(start))
        for origin, count in self._material.sent(missing).items():
            self._ledger.count_sent(origin, member.node, PayloadKind.DATA, count)
        member.has, member.set_to = np.union1d(member.has, missing), (plan, shard, share_milli)
        told = member.process.call(
            "work_on_shard",
            worker,
            number,
            start,
            plan,
            shard,
            (missing, self._material.crops.select_rows(missing)),
            anew,
            None if self._alone else share_milli,
        )
        return {member: told}

    def _gather(
        self,
        asked: Mapping[_Member, Future[Any]],
        answers: dict[_Member, Any] | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> dict[_Member, Any]:
        """Collects the replies; in an epoch that is interrupted they come soon.

        Args:
            asked: future of each reply.
            answers: receives the replies, also those before an error.
            interrupted: polled.

        Raises:
            CrewLostError: a process died.
            UserError: a process found invalid input.
        """
        answers = {} if answers is None else answers
        open_ = {told: member for member, told in asked.items()}
        dead: dict[_Member, str] = {}
        aborted = False
        while open_ and not dead:
            ready, _ = wait(open_, _LOOK_S, FIRST_COMPLETED)
            for told in ready:
                member = open_.pop(told)
                try:
                    answers[member] = told.result()
                except CallError as error:
                    dead |= self._dead(member, error)
            dead |= self._silent()
            if not aborted and interrupted():
                aborted = True
                open_ |= self._abort()
        if dead:
            for member in dead:
                del self._members[member.worker]
                member.process.end_process()
            open_ |= self._abort()
            # The epoch is aborted, so the survivors end within a step.
            ended, _ = wait([told for told, member in open_.items() if member not in dead], SILENT_S)
            for told in ended:
                with suppress(CallError, UserError):
                    answers[open_[told]] = told.result()
            raise CrewLostError([Dead(one.on, one.worker, reason) for one, reason in dead.items()])
        return answers

    def _silent(self) -> dict[_Member, str]:
        """Returns members without a heartbeat for ``SILENT_S``; sends heartbeat requests periodically."""
        now_s = self._now_s()
        silent = {}
        for member in self._members.values():
            if member.ping is None or member.ping.done():
                if now_s - member.pinged_s > _PING_EVERY_S:
                    member.ping, member.pinged_s = member.process.call("pid"), now_s
            elif now_s - member.pinged_s > SILENT_S:
                silent[member] = _SILENT
        return silent

    def _dead(self, suspect: _Member, error: CallError) -> dict[_Member, str]:
        """Returns which members are dead after an error in a reply, with the reasons."""
        pings = {member: member.process.call("pid") for member in self._members.values()}
        wait(pings.values(), SILENT_S)
        dead = {}
        for member, ping in pings.items():
            try:
                ping.result(0)
            except CallError as gone:
                dead[member] = str(gone)
            except TimeoutError:
                dead[member] = _SILENT
        # All processes are alive, so the suspect failed at its task.
        return dead or {suspect: str(error)}

    def _abort(self) -> dict[Future[Any], _Member]:
        """Aborts the epoch; the reply is to be awaited, so that no later epoch is meant."""
        server = self._members.get(None)
        return {} if server is None else {server.process.call("abort_epoch"): server}
