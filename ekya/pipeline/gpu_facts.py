"""Facts of a GPU server in a cost card, beside the rates of its work: batches, shares, cores.

A figure of a card was measured or is assumed, and the card says which (``found``).
"""

import json
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from ekya.core.host import host_part_s
from ekya.core.speed import SpeedCurve
from ekya.core.units import FULL_GPU_MILLI

CARDS = Path(__file__).parent / "cards"
"""Shipped cards, each named after its file."""

FEWEST_TRAINERS, MOST_TRAINERS = 2, 6
"""Processes that train on one GPU, by the cores that there are for each GPU."""


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class FirstBelief:
    """What a run believed of this GPU that took wall time for GPU time, with a process for each camera.

    Attributes:
        frame_s, label_s: to analyse a typical frame, and to label an object, as the clock told.
        golden: the golden model, a key of ``CLASSIFIERS``.
        prepare_s: to pass a training's crop, with its copies, through the frozen blocks, in small batches.
        process_frame_s: (share_milli, seconds) that a frame was charged in a process of its own.
        overlap: the same, in a fleet, over one process alone on the GPU.
        training_speed: (share_milli, speed) of a retraining at its share, as in ``SpeedCurve``.
    """

    frame_s: float
    label_s: float
    golden: str
    prepare_s: float
    process_frame_s: tuple[tuple[int, float], ...]
    overlap: float
    training_speed: tuple[tuple[int, float], ...]

    def charged_frame_s(self, share_milli: int) -> float:
        """Returns the seconds that a frame was charged at a share."""
        points = self.process_frame_s
        below = [point for point in points if point[0] <= share_milli]
        return self.overlap * (below[-1] if below else points[0])[1]


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class GpuFacts:
    """A GPU server, as far as the emulated world needs to know it.

    The rates of its card are of work that fills the GPU: what a batch costs beside is here.

    Attributes:
        cores: of the server, for all of its GPUs.
        pass_s: seconds of a pass beside the operations of its images: launches, and kernels that are never
            full.
        beside_training: speed of inference while a retraining or a preparation runs on the same GPU.
        training_speed: (share_milli, speed) of a retraining at its share, as in ``SpeedCurve``.
        reading_s: seconds of a core to read a frame, in a process of its camera.
        frame_s: seconds of the inference server's interpreter for a frame that is analysed.
        first: what the first run believed; None where no such run was made.
        found: for each figure of the card, ``measured: WHERE`` or ``assumed: WHY``.
    """

    cores: float
    pass_s: float
    beside_training: float
    training_speed: tuple[tuple[int, float], ...]
    reading_s: float
    frame_s: float
    first: FirstBelief | None = None
    found: Mapping[str, str] = field(default_factory=dict)

    def count_trainers(self, gpus: int) -> int:
        """Returns the number of processes that train on each GPU."""
        return trainers_per_gpu(self.cores, gpus)

    def host_part_s(self, fps: float, gpus: int) -> float:
        """Returns ``HostCosts.host_part_s`` for cameras of ``fps`` frames a second together."""
        trainers = gpus * self.count_trainers(gpus)
        return host_part_s(self.frame_s, self.cores, fps * self.reading_s, trainers, gpus)

    def training_curve(self) -> SpeedCurve:
        """Returns the speed of a retraining alone at its share."""
        return SpeedCurve(self.training_speed)

    def curve_among_others(self, gpus: int) -> SpeedCurve:
        """Returns the speed of a retraining at its share while others have the rest of the GPU."""
        most = self.count_trainers(gpus)
        points = [(milli, min(speed, most * milli / FULL_GPU_MILLI)) for milli, speed in self.training_speed]
        return SpeedCurve(tuple(points))

    def count_found(self) -> tuple[int, int]:
        """Returns how many figures of the card were measured, and how many are assumed."""
        measured = sum(text.startswith("measured:") for text in self.found.values())
        return measured, len(self.found) - measured


def shipped_cards() -> dict[str, Path]:
    """Returns the shipped cards by name."""
    return {path.stem: path for path in sorted(CARDS.glob("*.json"))}


def speed_by_card(gpu_name: str, cores: float, gpus: int) -> tuple[str, SpeedCurve]:
    """Returns the card of a GPU whose speeds were not measured, and the speed of a retraining by it.

    A GPU without a card of its own is taken for the shipped one that a job fills soonest.

    Args:
        gpu_name: as the driver tells it.
        cores: of this machine.
        gpus: number of GPUs.
    """
    cards = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in shipped_cards().items()}
    facts = {name: _FACTS.validate_python(card["gpu"]) for name, card in cards.items() if "gpu" in card}
    words = gpu_name.lower().replace("-", " ").split()
    own = [name for name in facts if name.rpartition("_")[2] in words]
    soonest = min(facts, key=lambda name: facts[name].training_curve().speed_at(_TYPICAL_SHARE_MILLI))
    name = own[0] if own else soonest
    return name, replace(facts[name], cores=cores).curve_among_others(gpus)


_FACTS = TypeAdapter(GpuFacts)
_TYPICAL_SHARE_MILLI = 125


def trainers_per_gpu(cores: float, gpus: int) -> int:
    """Returns the number of processes that train on each GPU of a server with these cores."""
    return min(max(int(cores / (2 * max(gpus, 1))), FEWEST_TRAINERS), MOST_TRAINERS)
