"""Columns of a trace's table, and its rows as windows of streams; ``docs/trace.md`` describes them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any, TypeVar

import pyarrow as pa
from pydantic import Field, ValidationError, create_model

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import Family, FamilyCurve, Profiler
from ekya.core.trace import (
    Epoch,
    Origin,
    Predicted,
    RecordedStart,
    RecordedTraining,
    Standing,
    StreamWindow,
    Trial,
)
from ekya.core.view import InferenceOption

Row = Mapping[str, Any]
"""Values of a row by column; those that are null are missing."""

ConfigT = TypeVar("ConfigT", Family, RetrainConfig, InferenceConfig)

_WHOLE = pa.int32(), Annotated[int, Field(ge=0)]
_POSITIVE = pa.int32(), Annotated[int, Field(ge=1)]
_MICROSECONDS = pa.int64(), Annotated[int, Field(ge=0)]
_ORIGIN = pa.int32(), Annotated[int, Field(ge=-1)]
_PART = pa.float64(), Annotated[float, Field(ge=0.0, le=1.0)]
_AMOUNT = pa.float64(), Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_NUMBERS = pa.list_(pa.float64()), list[float]
_PARTS = pa.list_(pa.float64()), list[Annotated[float, Field(ge=0.0, le=1.0)]]
_COUNTS = pa.list_(pa.int64()), list[Annotated[int, Field(ge=0)]]
_COLUMNS: dict[str, tuple[pa.DataType, Any]] = {
    "trainable_blocks": _WHOLE,
    "head_width": _WHOLE,
    "batch_size": _POSITIVE,
    "data_fraction": _PART,
    "epochs": _POSITIVE,
    "trained_in": _ORIGIN,
    "from_trainable_blocks": _WHOLE,
    "from_head_width": _WHOLE,
    "from_batch_size": _WHOLE,
    "in_window": _WHOLE,
    "validation_accuracy": _PART,
    "accuracy": _PART,
    "sd": _AMOUNT,
    "gpu_s": _AMOUNT,
    "profiling_gpu_s": _AMOUNT,
    "epoch_gpu_s": _AMOUNT,
    "prepare_gpu_s": _AMOUNT,
    "fixed_epoch_gpu_s": _AMOUNT,
    "fixed_prepare_gpu_s": _AMOUNT,
    "training_crops": _WHOLE,
    "validation_crops": _WHOLE,
    "every": _POSITIVE,
    "resolution": _WHOLE,
    "share_needed_milli": _WHOLE,
    "age_us": _MICROSECONDS,
    "curve": _NUMBERS,
    "accuracy_by_part": _PARTS,
    "objects_by_part": _COUNTS,
    "class_histogram": _COUNTS,
    "profiler": (pa.string(), Profiler),
}
"""Type and allowed values of the columns that may be null."""

_OF_FAMILY = {"trainable_blocks", "head_width", "batch_size"}
_OF_ORIGIN = {f"from_{name}" for name in _OF_FAMILY}
_OF_STANDING = {"trained_in", "in_window", "validation_accuracy"}
_OF_OPTION = {"every", "resolution", "accuracy", "share_needed_milli", "age_us"}
_NEEDED: dict[str, set[str]] = {
    "window": {"class_histogram", "training_crops", "validation_crops", "gpu_s", "profiling_gpu_s"},
    "start": _OF_STANDING,
    "epoch": {*_OF_FAMILY, *_OF_STANDING, "data_fraction", "epochs", "gpu_s"},
    "inference": _OF_OPTION,
    "inference-profiled": _OF_OPTION,
    "trial": {*_OF_FAMILY, "trained_in", "gpu_s"},
    "predicted": {*_OF_FAMILY, "epochs", "data_fraction", "trained_in", "accuracy", "gpu_s"},
}
"""Columns that a row of each kind needs."""
_OF_CURVE = {"training_crops", "epoch_gpu_s", "prepare_gpu_s"}

SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("window", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        *(pa.field(name, kind) for name, (kind, _) in _COLUMNS.items()),
    ]
)

_VALUES: dict[str, Any] = {name: (allowed | None, None) for name, (_, allowed) in _COLUMNS.items()}
_ROW = create_model("_Row", **_VALUES)


class RowError(ValueError):
    """A row that cannot be read.

    Attributes:
        row: the row.
        column: in which its value is wrong.
    """

    def __init__(self, row: Row, column: str, what: str) -> None:
        super().__init__(what)
        self.row, self.column = row, column


def check_rows(rows: Sequence[Row]) -> None:
    """Checks every value of rows for itself.

    Raises:
        RowError: a value is missing or impossible.
    """
    for row in rows:
        if row["kind"] not in _NEEDED:
            raise RowError(row, "kind", f"there is no {row['kind']!r}")
        try:
            _ROW.model_validate(row)
        except ValidationError as error:
            first = error.errors()[0]
            raise RowError(row, str(first["loc"][0]), f"{first['input']!r}: {first['msg']}") from error
        needed = set(_NEEDED[row["kind"]])
        needed |= _OF_ORIGIN if row.keys() & _OF_ORIGIN else set()
        needed |= _OF_CURVE if "curve" in row else set()
        for column in sorted(needed - row.keys()):
            raise RowError(row, column, f"is empty, and a row of kind {row['kind']} needs it")
        if "curve" in row and row["training_crops"] < 1:
            raise RowError(row, "training_crops", "a curve is measured on one crop at least")


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
        yield {"kind": "start", **_origin_values(start.origin), **_standing_values(start.standing)}
    for training in window.trainings:
        shared = {
            "kind": "epoch",
            **asdict(training.family),
            "data_fraction": training.data_fraction,
            **_origin_values(training.started_from),
        }
        for epoch in training.epochs:
            for standing in epoch.standings:
                yield {**shared, "epochs": epoch.epoch, "gpu_s": epoch.gpu_s, **_standing_values(standing)}
    for kind, options in (("inference", window.inference), ("inference-profiled", window.inference_profiled)):
        for option in options:
            yield {
                "kind": kind,
                **asdict(option.config),
                "accuracy": option.relative_accuracy,
                "share_needed_milli": option.share_needed_milli,
                "age_us": option.age_us,
            }
    for trial in window.trials:
        tried = _origin_values(trial.started_from)
        if trial.profiler is not None:
            tried["profiler"] = str(trial.profiler)
        curve = {} if trial.curve is None else asdict(trial.curve)
        if curve:
            curve |= {"training_crops": curve.pop("subset_crops"), "curve": curve.pop("accuracies")}
        yield {"kind": "trial", **asdict(trial.family), **tried, "gpu_s": trial.gpu_s, **curve}
        for said in trial.predicted:
            expected = {"accuracy": said.accuracy, "gpu_s": said.gpu_s, "sd": said.sd}
            yield {"kind": "predicted", **asdict(said.config), **tried, **expected}


def _origin_values(origin: Origin) -> dict[str, Any]:
    family = {} if origin.family is None else asdict(origin.family)
    return {"trained_in": origin.trained_in, **{f"from_{name}": value for name, value in family.items()}}


def _standing_values(standing: Standing) -> dict[str, Any]:
    return {
        "in_window": standing.window,
        "validation_accuracy": standing.validation_accuracy,
        "accuracy": standing.accuracy,
        "accuracy_by_part": list(standing.by_part) or None,
    }


def window_of(rows: Sequence[Row]) -> StreamWindow:
    """Builds a window from its checked rows, in any order.

    Raises:
        RowError: a row is missing, or one that another one needs.
    """
    of_kind: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of_kind[row["kind"]].append(row)
    for kind in ("window", "start", "inference"):
        if not of_kind[kind] or (kind == "window" and len(of_kind[kind]) > 1):
            where = f"window {rows[0]['window']} of {rows[0]['stream']}"
            needs = f"{where} needs {'one row' if kind == 'window' else 'a row'} of kind {kind!r}"
            raise RowError(rows[0], "kind", needs)
    (facts,) = of_kind["window"]
    return StreamWindow(
        window=facts["window"],
        class_histogram=tuple(facts["class_histogram"]),
        training_crops=facts["training_crops"],
        validation_crops=facts["validation_crops"],
        labelling_gpu_s=facts["gpu_s"],
        inference_gpu_s=facts["profiling_gpu_s"],
        inference=tuple(map(_option, of_kind["inference"])),
        inference_profiled=tuple(map(_option, of_kind["inference-profiled"])),
        starts=tuple(RecordedStart(_origin(row), _standing(row)) for row in of_kind["start"]),
        trainings=_trainings(of_kind["epoch"]),
        trials=_trials(of_kind["trial"], of_kind["predicted"]),
        objects_by_part=tuple(facts.get("objects_by_part", ())),
    )


def _values(kind: type[Any], row: Row) -> dict[str, Any]:
    """Returns the values of a row for the fields of a dataclass."""
    return {field.name: row[field.name] for field in fields(kind) if field.name in row}


def _config(kind: type[ConfigT], row: Row) -> ConfigT:
    return kind(**_values(kind, row))


def _origin(row: Row) -> Origin:
    family = {name.removeprefix("from_"): row[name] for name in _OF_ORIGIN if name in row}
    return Origin(row["trained_in"], Family(**family) if family else None)


def _profiler(row: Row) -> Profiler | None:
    return Profiler(row["profiler"]) if "profiler" in row else None


def _standing(row: Row) -> Standing:
    by_part = tuple(row.get("accuracy_by_part", ()))
    return Standing(row["in_window"], row["validation_accuracy"], row.get("accuracy"), by_part)


def _option(row: Row) -> InferenceOption:
    config = _config(InferenceConfig, row)
    return InferenceOption(config, row["accuracy"], row["share_needed_milli"], row["age_us"])


def _trainings(rows: Sequence[Row]) -> tuple[RecordedTraining, ...]:
    grouped: dict[tuple[Family, float, Origin], dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        grouped[_config(Family, row), row["data_fraction"], _origin(row)][row["epochs"]].append(row)
    return tuple(RecordedTraining(*key, _epochs(by_number)) for key, by_number in grouped.items())


def _epochs(by_number: Mapping[int, Sequence[Row]]) -> tuple[Epoch, ...]:
    epochs = []
    for expected, (number, own) in enumerate(sorted(by_number.items()), start=1):
        if number != expected:
            raise RowError(own[0], "epochs", f"epoch {expected} of this training is missing")
        standings = sorted(map(_standing, own), key=lambda standing: standing.window)
        if standings[0].window != own[0]["window"]:
            raise RowError(own[0], "in_window", "the window of the training itself is missing")
        epochs.append(Epoch(number, own[0]["gpu_s"], tuple(standings)))
    return tuple(epochs)


def _trials(rows: Sequence[Row], predicted: Sequence[Row]) -> tuple[Trial, ...]:
    said: dict[tuple[Family, Origin, Profiler | None], list[Predicted]] = defaultdict(list)
    for row in predicted:
        config = _config(RetrainConfig, row)
        expected = Predicted(config, row["accuracy"], row["gpu_s"], row.get("sd"))
        said[_config(Family, row), _origin(row), _profiler(row)].append(expected)
    trials = []
    for row in rows:
        family, origin, profiler = _config(Family, row), _origin(row), _profiler(row)
        curve = None
        if "curve" in row:
            measured = {"subset_crops": row["training_crops"], "accuracies": tuple(row["curve"])}
            curve = FamilyCurve(**measured, **_values(FamilyCurve, row))
        predictions = tuple(said.pop((family, origin, profiler), ()))
        trials.append(Trial(family, row["gpu_s"], curve, predictions, origin, profiler))
    if said:
        raise RowError(predicted[0], "kind", "a prediction needs a row of kind 'trial' of its family")
    return tuple(trials)
