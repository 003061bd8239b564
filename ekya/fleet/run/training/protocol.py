"""Trainings on a fleet: nodes and their processes, tasks, progress and failures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ekya.core.configs import RetrainConfig
from ekya.fleet.policy.assignment import SERVER_PART, Mode
from ekya.fleet.policy.places import JobName, NodeName, SiteName
from ekya.fleet.run.calls import Handle
from ekya.fleet.run.training.workers import EpochWork, Shard, TrainingTraffic, WorkerId
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import Examples
from ekya.models.training.optimizer import Recipe, SgdRecipe
from ekya.models.training.trainer import EpochResult

State = Literal["starting", "training", "stranded", "done", "stopped", "failed"]
"""Stranded: all nodes of the training are excluded, and it waits for others."""


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A machine of the fleet, for trainings.

    Attributes:
        name, site: as policies know them.
        machine_id: identifies the machine's present life; one that comes back has another.
        share_milli: of the machine, for a training.
        gpu: index of its GPU, from 0.
    """

    name: NodeName
    site: SiteName
    machine_id: str
    share_milli: int
    gpu: int = 0


class NoProcessError(Exception):
    """A node provides no process; the message says why, in one line."""


class ProcessSource(Protocol):
    """Source of the processes of trainings, which are ``TrainingActor``s."""

    def take_process(self, node: FleetNode) -> Handle:
        """Returns a process on a node; it may not have started yet, and errors appear in calls to it.

        Raises:
            NoProcessError: there is none for this training.
        """

    def give_back_process(self, node: FleetNode, process: Handle) -> None:
        """Takes back a live process that is not used any more."""

    def is_there(self, machine_id: str) -> bool:
        """Returns whether the machine is alive under this id."""

    def close(self) -> None:
        """Ends all idle processes."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingTask:
    """A training to run.

    Attributes:
        job: name.
        config: γ. Its batch size holds where an assignment sets none.
        start: checkpoint of the model to begin with and to distil from.
        classes: outputs of the trained model.
        training: crops by the node where they are; labels index ``classes``. Objects are told apart by their
            tracks, so no two nodes' crops have one of the same number.
        validation: crops on which the parameter server measures accuracy; no track of ``training``.
        home: node of all other inputs and destination of checkpoints.
        memory: exemplars to mix in, or None.
        seed: of the head, of the choice of tracks, of the distribution of crops, and of the order.
        mode: how workers' gradients are combined.
        staleness: asynchronous: by how many updates a gradient may be behind. Of W workers one has to be at
            least W - 1 behind, so that is always allowed.
        foresees: asynchronous: each of W workers gets the weights that momentum alone will have led to when
            its gradient arrives, after one step of each other worker: ŵ = w - η (m + m² + … + m^(W-1)) v,
            with rate η, momentum m, and velocity v of the steps so far. A late gradient then fits the weights
            that it moves, up to the effect of the gradients in between (Hakimi et al. 2019, Taming Momentum
            in a Distributed Asynchronous Environment; here with one v for all workers). Otherwise it gets
            the present weights.
        recipe: learning rates and the like.
        waits: when all its nodes are excluded, the training is stranded until it is moved, and then resumes
            from its last epoch. Otherwise it fails.
        checkpoints_part: upper bound of the part of the time in which checkpoints are sent home, as sending
            takes processor time at both ends. In the pauses only a new best epoch makes a checkpoint; the
            last epoch always does.
    """

    job: JobName
    config: RetrainConfig
    start: bytes
    classes: tuple[str, ...]
    training: Mapping[NodeName, Examples]
    validation: Examples
    home: NodeName
    memory: ExemplarMemory | None = None
    seed: int = 0
    mode: Mode = "synchronous"
    staleness: int = 8
    foresees: bool = True
    recipe: Recipe = field(default_factory=SgdRecipe)
    waits: bool = False
    checkpoints_part: float = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A process or node that died, or did not respond any more.

    Attributes:
        node: of the process.
        what: ``worker 0``, ``parameter server`` or ``node``.
        epoch: during which it was found, 1 for the first; 0 before.
        reason: in one line.
        left_out: the node takes no part from now on.
    """

    node: NodeName
    what: str
    epoch: int
    reason: str
    left_out: bool


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of a training.

    Attributes:
        state: in one word.
        planned_epochs: number of epochs in total.
        start_accuracy: on the validation crops before the first epoch; None until it is measured.
        epochs: those that are done.
        epochs_home: number of epochs in the newest checkpoint at home.
        epoch_s: wall time of each epoch; of one that was repeated, only the last attempt.
        failures: so far.
        traffic: bytes sent from node to node, and within nodes.
        work: of each node's workers so far; their times are added up.
        stalest: maximum number of updates by which a gradient that moved the weights was behind.
        moves: how often it was moved on request.
        reason: why it failed, or is stranded, or was when it was stopped; empty otherwise.
    """

    state: State
    planned_epochs: int
    start_accuracy: float | None = None
    epochs: tuple[EpochResult, ...] = ()
    epochs_home: int = 0
    epoch_s: tuple[float, ...] = ()
    failures: tuple[Failure, ...] = ()
    traffic: TrainingTraffic = field(default_factory=TrainingTraffic)
    work: Mapping[NodeName, EpochWork] = field(default_factory=dict)
    stalest: int = 0
    moves: int = 0
    reason: str = ""

    @property
    def over(self) -> bool:
        """True when the training has ended."""
        return self.state in ("done", "stopped", "failed")


class TrainingFailedError(Exception):
    """A training ended without weights; the message says why."""


def works_at_home(
    nodes: Mapping[NodeName, FleetNode], server: NodeName, shards: Mapping[WorkerId, Shard]
) -> bool:
    """Returns whether the only worker is on the parameter server's node, so that one process can be both."""
    return len(shards) == 1 and all(
        nodes[worker.node].machine_id == nodes[server].machine_id for worker in shards
    )


def shares_of(
    nodes: Mapping[NodeName, FleetNode], server: NodeName, shards: Mapping[WorkerId, Shard]
) -> dict[WorkerId | None, int]:
    """Returns each worker's share of its node, in thousandths, and under None the parameter server's."""
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
