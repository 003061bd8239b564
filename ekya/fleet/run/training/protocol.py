"""The seam between whoever decides where a training runs and what runs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ekya.core.configs import RetrainConfig
from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.names import JobName, NodeName, SiteName
from ekya.fleet.run.training.traffic import Traffic
from ekya.learning.labelled import LabelledCrops
from ekya.learning.memory import ExemplarMemory
from ekya.learning.sgd import SgdRecipe
from ekya.learning.trainee import DISTILLATION_WEIGHT
from ekya.learning.trainer import EpochResult

Mode = Literal["synchronous", "asynchronous"]
"""Whether a step waits for the gradients of all workers (Okita §III.A) or for none (Deep-Edge §II)."""

State = Literal["starting", "training", "stranded", "done", "stopped", "failed"]
"""Stranded: every node of it is out, and it waits for others."""


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A machine of the fleet, as whoever trains on it finds it.

    Attributes:
        name, site: as policies know them.
        ray_node_id: of the Ray node that it is, in hexadecimal digits; when it comes back it is another.
        share_milli: what a training may use of it.
        gpu: on which of its GPUs, counted from 0.
    """

    name: NodeName
    site: SiteName
    ray_node_id: str
    share_milli: int
    gpu: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TrainingTask:
    """What is to be trained.

    Attributes:
        job: its name.
        config: γ. Its batch size holds where an assignment names none.
        start: checkpoint of the model to begin with and to be distilled from.
        classes: outputs of the trained model.
        training: crops by the node where they lie; labels index ``classes``. Objects are told apart by their
            tracks, so no two nodes' crops have one of the same number.
        validation: what accuracy is measured on, by the parameter server; no track of ``training``.
        home: node where everything else lies and where checkpoints go.
        memory: exemplars to mix in, or None.
        seed: of the head, of the choice of tracks, of who gets which crop, and of the order.
        mode: how workers' gradients come together.
        staleness: asynchronous: by how many updates a gradient may be behind. Of W workers one has to be
            W - 1 behind at the least, and so many are always allowed.
        foresees: asynchronous: each of W workers is given the weights where momentum will have them when its
            gradient comes, after one step of each other worker: ŵ = w - η (m + m² + … + m^(W-1)) v, with rate
            η, momentum m, and v what the steps so far have left. So a late gradient is of the weights that it
            moves, but for what the gradients between have changed (Hakimi et al. 2019, Taming Momentum in a
            Distributed Asynchronous Environment; here with one v for all workers). Otherwise it is given the
            weights as they are.
        recipe: learning rates and the like.
        distillation_weight: 0 switches distillation off.
        waits: when every node of it is out, it is stranded until it is moved, and then goes on from its last
            epoch. Otherwise it fails.
        checkpoints_part: of the time at most so much passes with a checkpoint on its way home, as each takes
            processor time at both ends. What neither sets out nor is the best is not even made; after the
            last epoch there is one in any case.
    """

    job: JobName
    config: RetrainConfig
    start: bytes
    classes: tuple[str, ...]
    training: Mapping[NodeName, LabelledCrops]
    validation: LabelledCrops
    home: NodeName
    memory: ExemplarMemory | None = None
    seed: int = 0
    mode: Mode = "synchronous"
    staleness: int = 8
    foresees: bool = True
    recipe: SgdRecipe = field(default_factory=SgdRecipe)
    distillation_weight: float = DISTILLATION_WEIGHT
    waits: bool = False
    checkpoints_part: float = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that died, or did not answer any more.

    Attributes:
        node: where.
        what: ``worker 0``, ``parameter server`` or ``node``.
        epoch: during which it was found, 1 for the first; 0 before.
        reason: in one line.
        left_out: whether the node takes no part from now on.
    """

    node: NodeName
    what: str
    epoch: int
    reason: str
    left_out: bool


@dataclass(frozen=True, slots=True)
class NodeWork:
    """What the workers of a node have done so far; their times are added up.

    Attributes:
        steps: batches.
        crops: in them.
        compute_s: of wall time for gradients, waiting for its share included.
        update_s: for pushing a gradient, its update, and pulling; waiting for others included.
    """

    steps: int = 0
    crops: int = 0
    compute_s: float = 0.0
    update_s: float = 0.0

    def plus(self, other: "NodeWork") -> "NodeWork":
        """Both together."""
        return NodeWork(
            self.steps + other.steps,
            self.crops + other.crops,
            self.compute_s + other.compute_s,
            self.update_s + other.update_s,
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a training stands.

    Attributes:
        state: in one word.
        planned_epochs: how many there will be.
        start_accuracy: on the validation crops before the first epoch; None while nobody has measured.
        epochs: those that are done.
        epochs_home: how many of them the newest checkpoint at home comes after.
        epoch_s: of wall time, each of them; those that were begun again count once.
        failures: so far.
        traffic: bytes that went from node to node, and those that stayed on one.
        work: by node.
        stalest: of all gradients that moved the weights, by how many updates the last one was behind.
        moves: how often it went on elsewhere because it was told to.
        reason: why it failed, or is stranded, or was when it was stopped; empty otherwise.
    """

    state: State
    planned_epochs: int
    start_accuracy: float | None = None
    epochs: tuple[EpochResult, ...] = ()
    epochs_home: int = 0
    epoch_s: tuple[float, ...] = ()
    failures: tuple[Failure, ...] = ()
    traffic: Traffic = field(default_factory=Traffic)
    work: Mapping[NodeName, NodeWork] = field(default_factory=dict)
    stalest: int = 0
    moves: int = 0
    reason: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ("done", "stopped", "failed")


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """What came of it.

    Attributes:
        weights: checkpoint of the best epoch's model; of equals the last one's.
        validation_accuracy: of these.
        epoch: which it was.
    """

    weights: bytes
    validation_accuracy: float
    epoch: int


class TrainingFailedError(Exception):
    """A training has no weights to give; its text says why."""


class TrainingHandle(Protocol):
    """A training under way. Every method may be called by any thread; only ``wait`` and ``result`` wait."""

    def poll(self) -> Progress:
        """Where it stands."""

    def set_epochs(self, epochs: int) -> None:
        """How many there will be from now on: what an accuracy monitor thinks enough, or γ's again.

        Where as many are done it ends with the epoch under way.
        """

    def move(self, assignment: Assignment) -> None:
        """Goes on under another assignment when the epoch under way is over, from its checkpoint.

        A training that is stranded goes on at once. Nodes that are out stay out of it.

        Raises:
            UserError: the assignment names a node that is not there, or gives nobody anything.
        """

    def stop(self) -> None:
        """Ends it within a step; the best epoch so far remains its result."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end, at most so long; whether it is over."""

    def result(self, timeout_s: float | None = None) -> Trained:
        """Waits for the end.

        Raises:
            TimeoutError: it is not over by then.
            TrainingFailedError: no epoch was ever completed.
        """

    def best_yet(self) -> Trained | None:
        """What it would end with now, made anew by each call; None before the first epoch is over."""


class FleetTrainer(Protocol):
    """Runs trainings on the nodes of a fleet."""

    def start(self, task: TrainingTask, assignment: Assignment) -> TrainingHandle:
        """Begins a training; its actors are made meanwhile.

        Raises:
            UserError: the assignment names a node that is not there, or gives nobody anything.
        """
