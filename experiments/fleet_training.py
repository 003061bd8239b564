"""One training on several unequal Ray nodes of this machine, beside the same training on one node.

    python experiments/fleet_training.py
    python experiments/fleet_training.py --blocks 1 --way asynchronous --json -
    python experiments/fleet_training.py --full

Crops of the default fleet's four cameras, as many of each as a window's labels, lie on the nodes *big* and
*small*, two cameras on each. The nodes train on 40% and 20% of a core; the *hub*, which hosts the parameter
server, has 20%. The base model is trained on the crops and validated on objects of the window that follows,
in several ways with the same crops, the same γ and the same seed:

*one node*: the trainer's own retraining in this process, for its accuracy.
*big alone*: worker and parameter server on the big node, which receives all crops.
*synchronous* (Okita) and *asynchronous* (Deep-Edge): two crops to the big node for each to the small one, as
a solver would divide them.
*moved*: synchronous; after a third of the epochs the server moves to the small node, which then gets two
crops for each of the big one.
*worker killed*, *server killed*: in the middle of an epoch, after a third of them.

Epochs are timed by the wall clock, from the second on, and before a move or a kill. Run nothing else on the
machine meanwhile. The whole time is of a training whose processes already exist, except the first training
and killed processes. About three minutes; ``--full`` takes three seeds, and one block as well as the head:
that is 34 MB for each gradient and as much for the weights, and takes most of an hour.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Annotated

# Must be set before numpy is imported: a node is a part of one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import typer
from city_windows import one_thread, sample, windows_of
from emulated_cluster import emulated_cluster
from recipe import Full, Json, Seed, run, table_of_rows
from rich.console import Console

from ekya.cli.output import open_bars, open_output
from ekya.config.fleet_file import DEFAULT_FLEET, FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.fleet.policy.assignment import JobAssignment, NodePart
from ekya.fleet.policy.names import JobName, NodeName
from ekya.fleet.run.training.processes import TrainingProcesses
from ekya.fleet.run.training.protocol import Mode, TrainingProgress, TrainingTask
from ekya.fleet.run.training.traffic import PayloadKind
from ekya.fleet.run.training.trainer import FleetTraining, ProcessFleetTrainer
from ekya.gpu.backends.cpu import CpuShares
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.edge.model import EdgeModel
from ekya.models.training.labelled import LabelledCrops, concatenate
from ekya.models.training.trainer import EpochResult, Retraining, RetrainingData
from ekya.pipeline.base_model import base_model
from ekya.pipeline.discover_classes import fleet_classes
from ekya.streams.synthetic import CitySpec
from ekya.system.host import cpu_limit

BIG, SMALL, HUB = NodeName("big"), NodeName("small"), NodeName("hub")
SHARES = {BIG: 400, SMALL: 200, HUB: 200}
EPOCHS = 9
VALIDATION_CROPS = 200
"""Validation crops of each camera."""

EVERY = 3
"""Objects of every third frame are used."""

APART = 1_000_000
"""Offset between the track numbers of two cameras."""

PATIENCE_S = 600.0

Disturb = Callable[[FleetTraining], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One way to train.

    Attributes:
        way: name of the way.
        blocks, seed: trained blocks, and the seed of all draws.
        accuracy: on the validation crops, of the best epoch.
        last_accuracy: of the last epoch.
        epoch_s: median.
        whole_s: from start to result; processes exist already, except in the first training.
        pushed_mb, pulled_mb, data_mb, model_mb, checkpoint_mb: traffic between nodes.
        stalest: largest number of updates that a gradient was behind.
        failures, moves: number of each in the training.
    """

    way: str
    blocks: int
    seed: int
    accuracy: float
    last_accuracy: float
    epoch_s: float | None = None
    whole_s: float | None = None
    pushed_mb: float = 0.0
    pulled_mb: float = 0.0
    data_mb: float = 0.0
    model_mb: float = 0.0
    checkpoint_mb: float = 0.0
    stalest: int = 0
    failures: int = 0
    moves: int = 0


@dataclass(frozen=True, slots=True)
class Way:
    """Configuration of one way to train.

    Attributes:
        name: shown in tables and accepted by ``--way``.
        mode: of the training.
        assignment: crops and server of each node.
        disturb: disturbance after a third of the epochs.
    """

    name: str
    mode: Mode
    assignment: JobAssignment
    disturb: Disturb | None = None


def assigned(big: int, small: int, server: NodeName) -> JobAssignment:
    """Returns an assignment with crops in this proportion."""
    parts = tuple(NodePart(node, chunks=count) for node, count in ((BIG, big), (SMALL, small)) if count)
    return JobAssignment(JobName("city"), parts, "as the recipe has it", server)


SPREAD = assigned(2, 1, HUB)


def move(training: FleetTraining) -> None:
    """Moves the server to the small node, and most of the crops as well."""
    training.move_to(assigned(1, 2, SMALL))


def kill(node: NodeName, what: str) -> Disturb:
    """Returns a disturbance that kills a process."""

    def killing(training: FleetTraining) -> None:
        os.kill(training.pids()[node, what], signal.SIGKILL)

    return killing


WAYS = (
    Way("big alone", "synchronous", assigned(1, 0, BIG)),
    Way("synchronous", "synchronous", SPREAD),
    Way("asynchronous", "asynchronous", SPREAD),
    Way("synchronous, moved", "synchronous", SPREAD, move),
    Way("synchronous, worker killed", "synchronous", SPREAD, kill(SMALL, "worker 0")),
    Way("synchronous, server killed", "synchronous", SPREAD, kill(HUB, "parameter server")),
    Way("asynchronous, worker killed", "asynchronous", SPREAD, kill(SMALL, "worker 0")),
    Way("asynchronous, server killed", "asynchronous", SPREAD, kill(HUB, "parameter server")),
)


def crops_of(fleet: FleetConfig, seed: int) -> tuple[dict[NodeName, LabelledCrops], LabelledCrops]:
    """Returns the training crops of each node, and the validation crops."""
    classes = fleet_classes(fleet)
    training: dict[NodeName, list[LabelledCrops]] = {BIG: [], SMALL: []}
    validation = []
    for place, stream in enumerate(fleet.streams):
        if not isinstance(stream.source, CitySpec):
            raise UserError(f"{stream.id}: only cameras of the synthetic city know what is true")
        seen = windows_of(stream.source, classes, fleet.window_s, 3, EVERY)
        learnt = apart(sample(seen[1], fleet.golden.labels_per_window, seed), place)
        training[(BIG, SMALL)[place % 2]].append(learnt)
        following = apart(sample(seen[2], VALIDATION_CROPS, seed), place)
        # An object that stays over the window's end was trained on, so it does not validate.
        is_new = [track not in set(learnt.tracks) for track in following.tracks]
        validation.append(following.take(np.flatnonzero(is_new)))
    return {node: concatenate(parts) for node, parts in training.items()}, concatenate(validation)


def apart(crops: LabelledCrops, place: int) -> LabelledCrops:
    """Returns the crops with track numbers that no other camera has."""
    return LabelledCrops(crops.crops, crops.classes, crops.tracks + APART * place, crops.t_us)


def task_of(
    base: EdgeModel,
    training: dict[NodeName, LabelledCrops],
    validation: LabelledCrops,
    blocks: int,
    seed: int,
    mode: Mode,
) -> TrainingTask:
    """Returns the training task, which differs only in mode between ways."""
    config = RetrainConfig(EPOCHS, 16, 0, blocks, 1.0)
    return TrainingTask(
        JobName("city"), config, to_bytes(base), base.classes, training, validation, HUB, seed=seed, mode=mode
    )


def on_one_node(task: TrainingTask, base: EdgeModel) -> list[EpochResult]:
    """Runs the trainer's own retraining in this process."""
    retraining = Retraining(
        base,
        task.config,
        RetrainingData(
            concatenate([task.training[node] for node in sorted(task.training)]),
            task.validation,
            task.classes,
            memory=task.memory,
            seed=task.seed,
        ),
    )
    retraining.prepare()
    return [retraining.run_epoch() for _ in range(task.config.epochs)]


def on_nodes(trainer: ProcessFleetTrainer, task: TrainingTask, way: Way) -> Row:
    """Runs one training on the emulated nodes."""
    began_s = time.monotonic()
    training = trainer.start_training(task, way.assignment)
    while way.disturb is not None and not training.poll().over:
        if len(training.poll().epochs) >= EPOCHS // 3:
            way.disturb(training)
            break
        time.sleep(0.01)
    trained = training.result(PATIENCE_S)
    whole_s = time.monotonic() - began_s
    told = training.poll()
    return Row(
        way.name,
        task.config.trainable_blocks,
        task.seed,
        trained.accuracy,
        told.epochs[-1].validation_accuracy,
        median(undisturbed(told, way)),
        whole_s,
        *(
            told.traffic.crossed(kind) / 1e6
            for kind in (PayloadKind.PUSHED, PayloadKind.PULLED, PayloadKind.DATA)
        ),
        *(told.traffic.crossed(kind) / 1e6 for kind in (PayloadKind.MODEL, PayloadKind.CHECKPOINT)),
        told.stalest,
        len(told.failures),
        told.moves,
    )


def undisturbed(told: TrainingProgress, way: Way) -> Sequence[float]:
    """Returns the seconds of epochs without disturbance."""
    return told.epoch_s[1:] if way.disturb is None else told.epoch_s[1 : EPOCHS // 3]


def trials(
    console: Console, fleet: FleetConfig, trained: Sequence[int], seeds: Sequence[int], ways: Sequence[Way]
) -> Iterator[Row]:
    """Yields these ways, for each seed and number of blocks."""
    with open_bars(console) as bars, emulated_cluster(SHARES) as nodes:
        task_bar = bars.add_task("training", total=len(seeds) * len(trained) * (1 + len(ways)))
        trainer = ProcessFleetTrainer(nodes.nodes(), TrainingProcesses(CpuShares(cpu_limit())))
        for seed in seeds:
            base = base_model(fleet, seed)
            training, validation = crops_of(fleet, seed)
            for blocks in trained:
                task = task_of(base, training, validation, blocks, seed, "synchronous")
                results = on_one_node(task, base)
                best = max(result.validation_accuracy for result in results)
                yield Row("one node", blocks, seed, best, results[-1].validation_accuracy)
                bars.advance(task_bar)
                for way in ways:
                    task = task_of(base, training, validation, blocks, seed, way.mode)
                    yield on_nodes(trainer, task, way)
                    bars.advance(task_bar)
        trainer.close()


def mean_rows(rows: Sequence[Row]) -> Iterator[dict[str, object]]:
    """Yields means over the seeds, and the largest difference of a seed."""
    for blocks in sorted({row.blocks for row in rows}):
        of = [row for row in rows if row.blocks == blocks]
        for name in dict.fromkeys(row.way for row in of):
            same = [row for row in of if row.way == name]
            yield {
                "blocks": blocks,
                "way": name,
                "accuracy": f"{fmean(row.accuracy for row in same):.1%}",
                "points off": f"{100 * max((off(row, of) for row in same), key=abs):+.1f}",
                "epoch, s": shown_mean([row.epoch_s for row in same]),
                "whole, s": shown_mean([row.whole_s for row in same]),
                "pushed, MB": f"{fmean(row.pushed_mb for row in same):.1f}",
            }


def off(row: Row, rows: Sequence[Row]) -> float:
    """Returns the difference from one node's accuracy with the same seed."""
    (one,) = [other for other in rows if other.way == "one node" and other.seed == row.seed]
    return row.accuracy - one.accuracy


def shown_mean(values: Sequence[float | None]) -> str:
    """Formats the mean with two decimals; empty if there is no value."""
    there = [value for value in values if value is not None]
    return f"{fmean(there):.2f}" if there else ""


def main(
    blocks: Annotated[
        list[int] | None,
        typer.Option(
            min=0, max=5, help="That train; may be repeated; 0 unless named, with --full 1 as well."
        ),
    ] = None,
    way: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Tried beside one node; may be repeated; all unless named."),
    ] = None,
    full: Full = False,
    seed: Seed = 0,
    json_to: Json = None,
) -> None:
    """Train over several unequal Ray nodes of this machine, and on one."""
    one_thread()
    fleet = load_fleet(shipped_path(DEFAULT_FLEET))
    chosen = [known for known in WAYS if not way or known.name in way]
    for name in set(way or ()) - {known.name for known in WAYS}:
        known_names = "; ".join(known.name for known in WAYS)
        raise UserError(f"--way {name}: there is no such way; use one of: {known_names}")
    trained = sorted(set(blocks or ((0, 1) if full else (0,))))
    seeds = range(seed, seed + (3 if full else 1))
    with open_output(json_to) as out:
        rows = list(trials(out.console, fleet, trained, seeds, chosen))
        out.write_json({"shares_milli": SHARES, "epochs": EPOCHS, "rows": [asdict(row) for row in rows]})
        title = "A training on unequal nodes, and on one"
        out.console.print(table_of_rows(title, list(mean_rows(rows)), {}))


if __name__ == "__main__":
    run(
        main,
        "python experiments/fleet_training.py",
        "python experiments/fleet_training.py --blocks 0 --json -",
        "python experiments/fleet_training.py --full",
    )
