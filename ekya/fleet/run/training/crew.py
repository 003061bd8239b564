"""The parameter server and the workers of one training: made, set to work, watched, and found dead."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import ray
from ray.exceptions import RayError

from ekya.errors import UserError
from ekya.fleet.policy.assignment import SERVER_PART
from ekya.fleet.policy.names import NodeName
from ekya.fleet.run.training.homecoming import CheckpointThere
from ekya.fleet.run.training.material import Material, crop_bytes
from ekya.fleet.run.training.messages import ALWAYS, EpochWork, LessonPlan
from ekya.fleet.run.training.nodes import KnownNodes
from ekya.fleet.run.training.processes import NoProcessError, ProcessSource
from ekya.fleet.run.training.protocol import FleetNode
from ekya.fleet.run.training.server import EpochEnd
from ekya.fleet.run.training.traffic import Kind
from ekya.fleet.run.training.workers import Positions, Shard, WorkerId
from ekya.runtime.complaining import in_words

_LOG = logging.getLogger(__name__)

_LOOK_S = 0.2
_PING_EVERY_S = 5.0
SILENT_S = 60.0
"""Who does not answer for so long is dead: a process that Ray has lost, or one that stands still."""


class Ledger(Protocol):
    """Where a crew tells what it does."""

    def sent(self, origin: NodeName, target: NodeName, kind: Kind, count: int) -> None:
        """So many bytes went from node to node."""

    def did(self, worker: WorkerId, work: EpochWork) -> None:
        """What a worker did in an epoch, ended or not."""


@dataclass(frozen=True, slots=True)
class Dead:
    """A process that is no more.

    Attributes:
        on: where it was.
        worker: which; None for the parameter server.
        reason: in one line.
    """

    on: FleetNode
    worker: WorkerId | None
    reason: str

    @property
    def node(self) -> NodeName:
        """The name of where it was."""
        return self.on.name

    @property
    def what(self) -> str:
        """For people."""
        return "parameter server" if self.worker is None else f"worker {self.worker.place}"


class CrewLostError(Exception):
    """Somebody is dead, and the rest stands still."""

    def __init__(self, dead: Sequence[Dead]) -> None:
        super().__init__("; ".join(f"{one.what} on {one.node}: {one.reason}" for one in dead))
        self.dead = tuple(dead)


@dataclass(slots=True, eq=False)
class _Member:
    """A process of the crew.

    Attributes:
        on: where it is; the node may be known otherwise meanwhile.
        has: positions of crops that it was sent.
        set_to: what it was last told to do; None before.
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
    """Nothing here outlives a call but the processes: what is learnt is in snapshots, which the caller keeps.

    Args:
        material: of the training.
        nodes: of the fleet.
        processes: where they come from.
        ledger: told of all bytes and all work.
    """

    def __init__(
        self, material: Material, nodes: KnownNodes, processes: ProcessSource, ledger: Ledger
    ) -> None:
        self._material, self._nodes, self._processes, self._ledger = material, nodes, processes, ledger
        self._members: dict[WorkerId | None, _Member] = {}
        self._start = ray.put(material.task.start)
        self._assembled = 0
        # Whether one process is both the parameter server and the only worker.
        self._alone = False

    def assemble(
        self, plan: LessonPlan, shards: Mapping[WorkerId, Shard], server: NodeName, snapshot: bytes | None
    ) -> float:
        """Everybody is where they belong, has their crops and the snapshot's weights.

        Who is there already stays, and is sent only what it has not.

        Returns:
            Validation accuracy of these weights.

        Raises:
            CrewLostError: somebody died meanwhile.
            UserError: what somebody found wrong with the start model or the snapshot.
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
            if who not in places or places[who].ray_node_id != member.on.ray_node_id:
                self._give_back([self._members.pop(who)])
        for who, node in places.items():
            if who not in self._members:
                others = list(self._members.values()) if alone else []
                actor = others[0].actor if others else self._take(node, who)
                self._members[who] = _Member(node, who, actor, np.zeros(0, np.int64))
        shares = shares_of(nodes, server, shards)
        # In one process they have one share, which the server takes.
        begun = [self._begin_server(plan, sum(shares.values()) if alone else shares[None])]
        if alone:
            # The worker takes the share that the server has by then.
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
        """An epoch on all shards; None where it was interrupted.

        And where its checkpoint lies, which there is if it is more accurate than that.

        Raises:
            CrewLostError: somebody died meanwhile.
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
        """Processes at work, by node and by what they are, as ``Dead.what`` says it."""
        pids = {}
        for member in list(self._members.values()):
            with suppress(RayError):
                what = Dead(member.on, member.worker, "").what
                pids[member.node, what] = ray.get(member.actor.pid.remote(), timeout=SILENT_S)
        return pids

    def node_is_there(self, node: str) -> bool:
        """Whether there is any use in trying it again."""
        return self._processes.is_there(node)

    def release(self) -> None:
        """Everybody may do something else."""
        self._give_back(self._members.values())
        self._members.clear()

    def end(self) -> None:
        """Everybody is ended, whatever they do."""
        for member in self._members.values():
            self._processes.end(member.actor)
        self._members.clear()

    def _take(self, node: FleetNode, who: WorkerId | None) -> Any:
        try:
            return self._processes.take(node)
        except NoProcessError as error:
            raise CrewLostError([Dead(node, who, str(error))]) from error

    def _give_back(self, members: Iterable[_Member]) -> None:
        """Each process once."""
        for actor, on in {member.actor: member.on for member in members}.items():
            self._processes.give_back(on, actor)

    def _tell_work(self, server: _Member, told: Mapping[WorkerId, EpochWork]) -> None:
        """Of an epoch, however it ended. The server has also counted with those that are dead now."""
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
            self._ledger.sent(home, member.node, Kind.DATA, crop_bytes(validation))
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
        """What each answers; in an epoch that is interrupted they answer soon.

        Args:
            asked: a reference to each answer.
            answers: where they go, those that came before an error too.
            interrupted: asked now and then.

        Raises:
            CrewLostError: somebody died.
            UserError: what one of them found wrong.
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
            # Who lives ends its step now, since its epoch is no more.
            ended, _ = ray.wait(list(open_), num_returns=len(open_), timeout=SILENT_S) if open_ else ([], [])
            for reference in ended:
                with suppress(RayError):
                    answers[open_[reference]] = ray.get(reference)
            raise CrewLostError([Dead(one.on, one.worker, reason) for one, reason in dead.items()])
        return answers

    def _silent(self) -> dict[_Member, str]:
        """Who has not answered for too long; asks them all now and then."""
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
        """Who is dead now that somebody's answer is an error, and of what."""
        pings = {member: member.actor.pid.remote() for member in self._members.values()}
        ray.wait(list(pings.values()), num_returns=len(pings), timeout=SILENT_S)
        dead = {}
        for member, ping in pings.items():
            try:
                ray.get(ping, timeout=0)
            except RayError as gone:
                dead[member] = in_words(gone)
        # Where all live, one cannot do what it was asked for.
        return dead or {suspect: in_words(error)}

    def _bury(self, dead: Collection[_Member]) -> None:
        for member in dead:
            del self._members[member.worker]
            self._processes.end(member.actor)
        if None in self._members:
            self._members[None].actor.abort.remote()


def _raise_complaint(error: RayError) -> None:
    """Raises what the user can put right; returns from anything else."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, UserError):
        raise UserError(str(cause)) from error


def works_at_home(
    nodes: Mapping[NodeName, FleetNode], server: NodeName, shards: Mapping[WorkerId, Shard]
) -> bool:
    """Whether the only worker is where the parameter server is, so that one process can be both."""
    return len(shards) == 1 and all(
        nodes[worker.node].ray_node_id == nodes[server].ray_node_id for worker in shards
    )


def shares_of(
    nodes: Mapping[NodeName, FleetNode], server: NodeName, shards: Mapping[WorkerId, Shard]
) -> dict[WorkerId | None, int]:
    """What each worker, and the parameter server under None, may use of its node, in thousandths."""
    counts: dict[NodeName, int] = {}
    for worker in shards:
        counts[worker.node] = counts.get(worker.node, 0) + 1
    whole = nodes[server].share_milli
    own = round(whole * SERVER_PART) if server in counts else whole
    shares: dict[WorkerId | None, int] = {None: max(1, own)}
    for worker, shard in shards.items():
        left = nodes[worker.node].share_milli - (own if worker.node == server else 0)
        shares[worker] = max(1, left * shard.share_milli // 1000 // counts[worker.node])
    return shares
