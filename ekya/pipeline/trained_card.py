"""Facts of a trained model as they stand in its file, and its card."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekya.config.shipped import describe_better_base, is_shipped
from ekya.models.edge.spec import EdgeSpec
from ekya.models.golden.spec import GoldenSpec
from ekya.models.weights_metadata import read_metadata
from ekya.results.metrics.audit import wilson_interval

ACCURACY, INTERVAL = "accuracy", "accuracy_interval"
"""Keys of a file's metadata that a run reads."""

_TRAINING = "training"

_QUANTILE = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedFacts:
    """Facts of a trained model.

    Attributes:
        kind: ``golden`` or ``edge``.
        architecture, side: of the model.
        classes: in the order of its outputs.
        begins_with: its first weights, in words.
        streams, held_out: that trained, and that measured; the latter is empty if the last objects of each
            stream measured.
        crops, objects: that it learnt from.
        stopping_crops: of the same streams, by which the best epoch was chosen.
        epochs, best_epoch: how long it trained, and which epoch's weights these are, from 1.
        confusions: crops of each class of the held-out part (row) by the answer (column).
        held_out_objects: in that part.
        licences: of the data, by their names.
        command: that made it.
        ekya: version that made it.
    """

    kind: str
    architecture: str
    side: int
    classes: tuple[str, ...]
    begins_with: str
    streams: Sequence[str]
    held_out: Sequence[str]
    crops: int
    objects: int
    stopping_crops: int
    epochs: int
    best_epoch: int
    confusions: Sequence[Sequence[int]]
    held_out_objects: int
    licences: Mapping[str, str]
    command: str
    ekya: str

    @property
    def _table(self) -> NDArray[np.int64]:
        return np.array(self.confusions, np.int64)

    @property
    def held_out_crops(self) -> int:
        """Number of crops of the held-out part."""
        return int(self._table.sum())

    @property
    def accuracy(self) -> float:
        """Part of them that is answered right."""
        return float(np.trace(self._table)) / self.held_out_crops

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the accuracy; crops of one object are alike, so each object counts once."""
        return wilson_interval(self.accuracy, self.held_out_objects, _QUANTILE)

    @property
    def by_class(self) -> Mapping[str, float]:
        """Accuracy of each class that occurs in the held-out part."""
        table = self._table
        return {
            name: float(table[row, row] / table[row].sum())
            for row, name in enumerate(self.classes)
            if table[row].any()
        }

    @property
    def balanced_accuracy(self) -> float:
        """Mean of ``by_class``."""
        return float(np.mean(list(self.by_class.values())))

    def fleet_section(self, file: str) -> str:
        """Returns the section of a fleet file that takes the weights in a file."""
        resolution = f", resolution: {self.side}" if self.kind == "edge" else ""
        return f"{self.kind}: {{model: {self.architecture}, weights: {file}{resolution}}}"

    @property
    def measured_on(self) -> str:
        """The held-out part, in words."""
        if not self.held_out:
            return "the objects that came last"
        return f"the held-out stream{'s' * (len(self.held_out) > 1)} {', '.join(self.held_out)}"

    def as_json(self) -> dict[str, Any]:
        """Returns all facts and figures as JSON values."""
        figures = ("held_out_crops", ACCURACY, "balanced_accuracy", "by_class")
        return {
            **asdict(self),
            **{name: getattr(self, name) for name in figures},
            INTERVAL: list(self.interval),
        }

    def as_metadata(self) -> dict[str, str]:
        """Returns the metadata of the file of weights."""
        return {
            ACCURACY: repr(self.accuracy),
            INTERVAL: json.dumps(self.interval),
            _TRAINING: json.dumps(self.as_json(), ensure_ascii=False),
        }


def golden_accuracy(golden: GoldenSpec) -> tuple[float, float, float] | None:
    """Returns the accuracy of a golden model and its interval as its file has them; None if it has none."""
    metadata = {} if golden.weights is None else read_metadata(golden.weights)
    try:
        low, high = json.loads(metadata[INTERVAL])
        return float(metadata[ACCURACY]), float(low), float(high)
    except (KeyError, ValueError, TypeError):
        return None


def trained_facts(weights: Path) -> Mapping[str, Any]:
    """Returns what a file says of its training, as ``TrainedFacts.as_json``; empty where it says nothing."""
    try:
        facts = json.loads(read_metadata(weights)[_TRAINING])
    except (KeyError, ValueError):
        return {}
    return facts if isinstance(facts, Mapping) else {}


def describe_base(edge: EdgeSpec, fleet: str = "FLEET") -> str:
    """Returns what classifiers begin from, and how to make a better base than a shipped one.

    Args:
        edge: section of the fleet file.
        fleet: name of that file.
    """
    path, better = edge.weights, describe_better_base(fleet)
    if path is None:
        return f"Edge models begin from fresh weights; {better}"
    if is_shipped(path):
        return f"Edge models begin from {path.name}, which has seen a rendered city only; {better}"
    of = ", ".join(map(str, trained_facts(path).get("streams", ())))
    return f"Edge models begin from {path.name}" + (f", which ekya edge train has made of {of}" if of else "")


def write_trained_card(facts: TrainedFacts, file: str, sha256: str) -> str:
    """Returns the card of a trained model as Markdown, with the checksum where Ekya reads it."""
    low, high = facts.interval
    what = {"golden": "a golden model", "edge": "the common base of edge models"}[facts.kind]
    use = facts.fleet_section(file)
    held_out = f"{facts.held_out_objects} objects"
    licences = "; ".join(f"{name}: {terms}" for name, terms in facts.licences.items())
    counts = [sum(row) for row in facts.confusions]
    by_class = [
        f"| {name} | {count} | {facts.by_class[name]:.1%} |" if count else f"| {name} | 0 | |"
        for name, count in zip(facts.classes, counts, strict=True)
    ]
    confusions = [
        f"| {name} | {' | '.join(map(str, row))} |"
        for name, row in zip(facts.classes, facts.confusions, strict=True)
    ]
    newline = "\n"
    return f"""\
# {file}

A {facts.architecture} for crops of {facts.side} pixels, {what}:

    {use}

- classes: {", ".join(facts.classes)}
- data: {facts.crops} crops of {facts.objects} objects in the streams {", ".join(facts.streams)},
  and {facts.stopping_crops} crops of other objects there by which the best epoch was chosen
- held out: {facts.held_out_crops} crops of {held_out}, {facts.measured_on}
- licence of the data: {licences or "not known"}
- began with: {facts.begins_with}
- trained: {facts.epochs} epochs; these weights are of epoch {facts.best_epoch}
- made by: Ekya {facts.ekya}, `{facts.command}`
- sha256: {sha256}

## Accuracy on {facts.measured_on}

**{facts.accuracy:.1%}** ({low:.1%} to {high:.1%} with 95% confidence, Wilson's interval of {held_out}),
balanced over the classes {facts.balanced_accuracy:.1%}.

| class | crops | accuracy |
|---|---:|---:|
{newline.join(by_class)}

Rows are the true classes, columns the answers:

| | {" | ".join(facts.classes)} |
|---|{"---:|" * len(facts.classes)}
{newline.join(confusions)}
"""
