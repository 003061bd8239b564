"""Converts a stream's window to rows of a trace's table and back; ``docs/trace.md`` describes the rows."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.errors import UserError
from ekya.core.profile import Family, FamilyCurve
from ekya.core.trace import Epoch, Origin, Predicted, Standing, Start, StreamWindow, Training, Trial
from ekya.core.view import InferenceOption

_KINDS = ("window", "start", "epoch", "inference", "inference-profiled", "trial", "predicted")


def rows_of(window: StreamWindow) -> Iterator[dict[str, Any]]:
    """Yields the rows of a window, without its stream and index; unused columns are left out."""
    yield {
        "kind": "window",
        "class_histogram": list(window.class_histogram),
        "training_crops": window.training_crops,
        "validation_crops": window.validation_crops,
        "gpu_s": window.labelling_gpu_s,
        "profiling_gpu_s": window.inference_gpu_s,
        "objects_by_part": list(window.objects_by_part) or None,
    }
    for start in window.starts:
        yield {"kind": "start", **_origin(start.origin), **_standing(start.standing)}
    for training in window.trainings:
        shared = {
            "kind": "epoch",
            **_values(training.family),
            "data_fraction": training.data_fraction,
            **_origin(training.started_from),
        }
        for epoch in training.epochs:
            for standing in epoch.standings:
                yield {**shared, "epochs": epoch.epoch, "gpu_s": epoch.gpu_s, **_standing(standing)}
    for kind, options in (("inference", window.inference), ("inference-profiled", window.inference_profiled)):
        for option in options:
            yield {
                "kind": kind,
                **_values(option.config),
                "accuracy": option.relative_accuracy,
                "share_needed_milli": option.share_needed_milli,
                "age_us": option.age_us,
            }
    for trial in window.trials:
        yield {
            "kind": "trial",
            **_values(trial.family),
            **_origin(trial.started_from),
            "gpu_s": trial.gpu_s,
            **(
                {
                    "training_crops": trial.curve.subset_crops,
                    "curve": list(trial.curve.accuracies),
                    "epoch_gpu_s": trial.curve.epoch_gpu_s,
                    "prepare_gpu_s": trial.curve.prepare_gpu_s,
                    "fixed_epoch_gpu_s": trial.curve.fixed_epoch_gpu_s,
                    "fixed_prepare_gpu_s": trial.curve.fixed_prepare_gpu_s,
                    "validation_crops": trial.curve.validation_crops,
                }
                if trial.curve
                else {}
            ),
        }
        for said in trial.predicted:
            yield {
                "kind": "predicted",
                **_values(said.config),
                **_origin(trial.started_from),
                "accuracy": said.accuracy,
                "gpu_s": said.gpu_s,
                "sd": said.sd,
            }


def _origin(origin: Origin) -> dict[str, Any]:
    family = {} if origin.family is None else _values(origin.family)
    return {"trained_in": origin.trained_in, **{f"from_{name}": value for name, value in family.items()}}


def _standing(standing: Standing) -> dict[str, Any]:
    return {
        "in_window": standing.window,
        "validation_accuracy": standing.validation_accuracy,
        "accuracy": standing.accuracy,
        "accuracy_by_part": list(standing.by_part) or None,
    }


def _values(config: Family | RetrainConfig | InferenceConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)}


@dataclass(frozen=True, slots=True)
class Row:
    """A row with typed access to its values, whose errors name row and column."""

    path: Path
    columns: Mapping[str, list[Any]]
    number: int

    def value(self, column: str) -> Any:
        """Returns the value of a column, None if it is null."""
        return self.columns[column][self.number - 1]

    @property
    def kind(self) -> str:
        """Kind of the row."""
        return str(self.value("kind"))

    def whole(self, column: str, least: int = 0) -> int:
        """Returns an integer of at least ``least``."""
        value = self._known(column)
        if value < least:
            raise self.wrong(column, f"{value} is below {least}")
        return int(value)

    def part(self, column: str) -> float:
        """Returns a number in [0, 1]."""
        value = self._known(column)
        if not 0.0 <= value <= 1.0:
            raise self.wrong(column, f"{value} is not between 0 and 1")
        return float(value)

    def part_or_none(self, column: str) -> float | None:
        """Returns a number in [0, 1], or None if it is null."""
        return None if self.value(column) is None else self.part(column)

    def parts(self, column: str) -> tuple[float, ...]:
        """Returns numbers in [0, 1]; empty if it is null."""
        found = () if self.value(column) is None else tuple(self.listed(column))
        if not all(0.0 <= value <= 1.0 for value in found):
            raise self.wrong(column, f"{list(found)} are not all between 0 and 1")
        return found

    def counts(self, column: str) -> tuple[int, ...]:
        """Returns non-negative integers; empty if it is null."""
        found = () if self.value(column) is None else tuple(self.listed(column))
        if any(value < 0 for value in found):
            raise self.wrong(column, f"{list(found)} are not all at least 0")
        return found

    def amount(self, column: str) -> float:
        """Returns a finite, non-negative number."""
        value = self._known(column)
        if not (math.isfinite(value) and value >= 0.0):
            raise self.wrong(column, f"{value} is no amount")
        return float(value)

    def amount_or_zero(self, column: str) -> float:
        """Returns a finite, non-negative number; 0 if it is null."""
        return 0.0 if self.value(column) is None else self.amount(column)

    def listed(self, column: str) -> list[Any]:
        """Returns a list without nulls."""
        found = list(self._known(column))
        if any(value is None for value in found):
            raise self.wrong(column, "a value of the list is missing")
        return found

    def family(self) -> Family:
        """Returns the family of the row."""
        return Family(self.whole("trainable_blocks"), self.whole("head_width"), self.whole("batch_size", 1))

    def origin(self) -> Origin:
        """Returns the origin of the model that the row describes or starts from."""
        names = ("from_trainable_blocks", "from_head_width", "from_batch_size")
        if all(self.value(name) is None for name in names):
            return Origin(self.whole("trained_in", -1))
        blocks, width, batch = (self.whole(name) for name in names)
        return Origin(self.whole("trained_in", -1), Family(blocks, width, batch))

    def retrain_config(self) -> RetrainConfig:
        """Returns the γ of the row."""
        of = self.family()
        return RetrainConfig(
            epochs=self.whole("epochs", 1),
            batch_size=of.batch_size,
            head_width=of.head_width,
            trainable_blocks=of.trainable_blocks,
            data_fraction=self.part("data_fraction"),
        )

    def standing(self) -> Standing:
        """Returns both accuracies of the row, with their window."""
        return Standing(
            window=self.whole("in_window"),
            validation_accuracy=self.part("validation_accuracy"),
            accuracy=self.part_or_none("accuracy"),
            by_part=self.parts("accuracy_by_part"),
        )

    def wrong(self, column: str, what: str) -> UserError:
        """Returns an error for a value of the row."""
        return UserError(f"{self.path}: row {self.number}, column {column}: {what}; record the trace again")

    def _known(self, column: str) -> Any:
        value = self.value(column)
        if value is None:
            raise self.wrong(column, f"is empty, and a row of kind {self.kind} needs it")
        return value


def window_of(rows: list[Row]) -> StreamWindow:
    """Builds a window from its rows, in any order.

    Raises:
        UserError: a value is missing or invalid.
    """
    of_kind: dict[str, list[Row]] = {kind: [] for kind in _KINDS}
    for row in rows:
        if row.kind not in of_kind:
            raise row.wrong("kind", f"there is no {row.kind!r}")
        of_kind[row.kind].append(row)
    first = rows[0]
    for kind, count in (("window", 1), ("start", 0), ("inference", 0)):
        if not of_kind[kind] or (count and len(of_kind[kind]) > count):
            where = f"window {first.value('window')} of {first.value('stream')}"
            raise first.wrong("kind", f"{where} needs {'one row' if count else 'a row'} of kind {kind!r}")
    facts = of_kind["window"][0]
    return StreamWindow(
        window=facts.value("window"),
        class_histogram=tuple(facts.listed("class_histogram")),
        training_crops=facts.whole("training_crops"),
        validation_crops=facts.whole("validation_crops"),
        labelling_gpu_s=facts.amount("gpu_s"),
        inference_gpu_s=facts.amount("profiling_gpu_s"),
        inference=tuple(_inference(row) for row in of_kind["inference"]),
        inference_profiled=tuple(_inference(row) for row in of_kind["inference-profiled"]),
        starts=tuple(Start(row.origin(), row.standing()) for row in of_kind["start"]),
        trainings=_trainings(of_kind["epoch"]),
        trials=_trials(of_kind["trial"], of_kind["predicted"]),
        objects_by_part=facts.counts("objects_by_part"),
    )


def _inference(row: Row) -> InferenceOption:
    return InferenceOption(
        InferenceConfig(row.whole("every", 1), row.whole("resolution", 1)),
        row.part("accuracy"),
        row.whole("share_needed_milli"),
        row.whole("age_us"),
    )


def _trainings(rows: list[Row]) -> tuple[Training, ...]:
    grouped: dict[tuple[Family, float, Origin], dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        key = (row.family(), row.part("data_fraction"), row.origin())
        grouped[key][row.whole("epochs", 1)].append(row)
    return tuple(Training(*key, _epochs(by_number)) for key, by_number in grouped.items())


def _epochs(by_number: Mapping[int, list[Row]]) -> tuple[Epoch, ...]:
    for expected, number in enumerate(sorted(by_number), start=1):
        if number != expected:
            raise by_number[number][0].wrong("epochs", f"epoch {expected} of this training is missing")
    return tuple(
        Epoch(number, own[0].amount("gpu_s"), _standings(own)) for number, own in sorted(by_number.items())
    )


def _standings(rows: list[Row]) -> tuple[Standing, ...]:
    found = sorted((row.standing() for row in rows), key=lambda standing: standing.window)
    if found[0].window != rows[0].value("window"):
        raise rows[0].wrong("in_window", "the window of the training itself is missing")
    return tuple(found)


def _trials(rows: list[Row], predicted: list[Row]) -> tuple[Trial, ...]:
    said: dict[tuple[Family, Origin], list[Predicted]] = defaultdict(list)
    for row in predicted:
        sd = None if row.value("sd") is None else row.amount("sd")
        said[row.family(), row.origin()].append(
            Predicted(row.retrain_config(), row.part("accuracy"), row.amount("gpu_s"), sd)
        )
    trials = tuple(
        Trial(
            row.family(),
            row.amount("gpu_s"),
            _curve(row),
            tuple(said.pop((row.family(), row.origin()), ())),
            row.origin(),
        )
        for row in rows
    )
    if said:
        raise predicted[0].wrong("kind", "a prediction needs a row of kind 'trial' of its family")
    return trials


def _curve(row: Row) -> FamilyCurve | None:
    if row.value("curve") is None:
        return None
    of = row.family()
    return FamilyCurve(
        batch_size=of.batch_size,
        head_width=of.head_width,
        trainable_blocks=of.trainable_blocks,
        subset_crops=row.whole("training_crops", 1),
        accuracies=tuple(float(accuracy) for accuracy in row.listed("curve")),
        epoch_gpu_s=row.amount("epoch_gpu_s"),
        prepare_gpu_s=row.amount("prepare_gpu_s"),
        validation_crops=None if row.value("validation_crops") is None else row.whole("validation_crops"),
        fixed_prepare_gpu_s=row.amount_or_zero("fixed_prepare_gpu_s"),
        fixed_epoch_gpu_s=row.amount_or_zero("fixed_epoch_gpu_s"),
    )
