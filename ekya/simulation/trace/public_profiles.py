"""Reads the profiles of the public Ekya implementation as a trace: one JSON file per city.

A file holds three objects by task, a task being a retraining window:

- ``taskwise_train_profiles``: for each task a list of ``[hp_epochs, start accuracy, end accuracy, resource
  time, model]``, where ``hp_epochs`` is the number of a set of hyperparameters, ``_``, and the epochs;
- ``taskwise_predicted_profiles``: the same, as the micro-profiler predicted it;
- ``taskwise_infer_profiles``: for each task and set of hyperparameters ``[start accuracy, model]``.

Values that the layout lacks are filled in as follows. A set of hyperparameters has only its number, which is
stored as ``head_width``. Between the listed epochs, accuracy and time are interpolated linearly. A window
starts at the lowest of its start accuracies, as in the public simulator, regardless of the model that served
before. Labelling and profiling cost nothing. The accuracy of λ that skips frames is the prior of
`planning/profiling/inference_profile.py`, and analysing every frame needs ``FULL_SHARE_MILLI``.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.errors import UserError
from ekya.core.profile import Family
from ekya.core.trace import (
    BASE,
    Epoch,
    Predicted,
    Standing,
    Start,
    StreamTrace,
    StreamWindow,
    Trace,
    Training,
    Trial,
)
from ekya.core.units import FULL_GPU_MILLI, StreamId, seconds_to_us
from ekya.core.view import InferenceOption
from ekya.planning.profiling.inference_profile import oldest_result_us, prior_relative_accuracy
from ekya.system.files import user_errors

TRAINED, PREDICTED, STARTS = (
    "taskwise_train_profiles",
    "taskwise_predicted_profiles",
    "taskwise_infer_profiles",
)
"""Keys of a file."""

WINDOW_S = 200.0
FULL_SHARE_MILLI = 250
LABELS = 500
FPS = 30.0
"""Values that the layout lacks: the paper's window, a quarter of a GPU for every frame, labels, frames/s."""

MOST_EPOCHS = 10_000
"""Upper bound, since each epoch becomes a row of the trace; more is taken for a typing error."""

_RESOLUTION = 224
_EVERY = (1, 2, 3, 5, 10)
_BATCH = 16


def read_public_profiles(files: Sequence[Path]) -> Trace:
    """Reads the files of some cities as a trace with one stream per file, named after it.

    The tasks in order become windows 1, 2, …; all streams end with the shortest.

    Raises:
        UserError: a file is missing or damaged; names the file and the key.
    """
    cities = [_City.read(path) for path in sorted(files)]
    windows = min((len(city.tasks) for city in cities), default=0)
    streams = [
        StreamTrace(StreamId(city.path.stem), FPS, city.windows(windows))
        for city in sorted(cities, key=lambda city: city.path.stem)
    ]
    configs = {entry.config for city in cities for task in city.tasks for entry in city.trained[task]}
    return Trace(
        window_us=seconds_to_us(WINDOW_S),
        gpu="as the public profiles were measured",
        classes=(),
        retrain_configs=tuple(sorted(configs)),
        inference_configs=tuple(option.config for option in _INFERENCE),
        streams=tuple(streams),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of a task's list."""

    config: RetrainConfig
    family: Family
    end_accuracy: float
    gpu_s: float


@dataclass(frozen=True, slots=True)
class _City:
    """Content of a file.

    Attributes:
        tasks: in rising order.
        trained, predicted: by task.
        starts: lowest start accuracy of each task.
    """

    path: Path
    tasks: tuple[int, ...]
    trained: dict[int, list[_Entry]]
    predicted: dict[int, list[_Entry]]
    starts: dict[int, float]

    @staticmethod
    def read(path: Path) -> "_City":
        """Reads and checks a file."""
        try:
            with user_errors(path):
                content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{path}: this is not JSON ({error}); fetch the file again") from error
        if not isinstance(content, dict):
            raise UserError(f"{path}: is not an object with {TRAINED}; name a file of profiles")
        found = _Node(path, "", content)
        trained = {task: _entries(node) for task, node in found.under(TRAINED).by_number().items()}
        predicted = {task: _entries(node) for task, node in found.under(PREDICTED).by_number().items()}
        starts = {task: _lowest(node) for task, node in found.under(STARTS).by_number().items()}
        for key, there in ((PREDICTED, predicted), (STARTS, starts)):
            missing = sorted(set(trained) - set(there))
            if missing:
                raise found.under(key).wrong(f"task {missing[0]} of {TRAINED} is missing")
        if not trained:
            raise found.under(TRAINED).wrong("holds no task")
        return _City(path, tuple(sorted(trained)), trained, predicted, starts)

    def windows(self, tasks: int) -> tuple[StreamWindow, ...]:
        """Returns window 0, which trains nothing, and one for each of the first tasks."""
        chosen = self.tasks[:tasks]
        return (
            self._window(0, self.starts[chosen[0]], [], []),
            *(
                self._window(index, self.starts[task], self.trained[task], self.predicted[task])
                for index, task in enumerate(chosen, start=1)
            ),
        )

    def _window(
        self, index: int, start: float, trained: list[_Entry], predicted: list[_Entry]
    ) -> StreamWindow:
        families = sorted({entry.family for entry in trained})
        labels = LABELS if index else 0
        return StreamWindow(
            window=index,
            class_histogram=(),
            training_crops=labels - labels // 5,
            validation_crops=labels // 5,
            labelling_gpu_s=0.0,
            inference_gpu_s=0.0,
            inference=_INFERENCE,
            inference_profiled=(),
            starts=(Start(BASE, Standing(index, start, start)),),
            trainings=tuple(
                Training(
                    family,
                    1.0,
                    BASE,
                    _epochs(index, start, [e for e in trained if e.family == family]),
                )
                for family in families
            ),
            trials=tuple(
                Trial(
                    family,
                    0.0,
                    None,
                    tuple(
                        Predicted(entry.config, entry.end_accuracy, entry.gpu_s)
                        for entry in predicted
                        if entry.family == family
                    ),
                )
                for family in families
            ),
        )


def _epochs(window: int, start: float, entries: list[_Entry]) -> tuple[Epoch, ...]:
    """Returns every epoch of a training, interpolated linearly between the listed ones."""
    known = [(0, start, 0.0)]
    known += sorted((entry.config.epochs, entry.end_accuracy, entry.gpu_s) for entry in entries)
    epochs = []
    for (since, accuracy, gpu_s), (until, end_accuracy, end_gpu_s) in pairwise(known):
        for epoch in range(since + 1, until + 1):
            part = (epoch - since) / (until - since)
            reached = accuracy + part * (end_accuracy - accuracy)
            standing = Standing(window, reached, reached)
            epochs.append(Epoch(epoch, gpu_s + part * (end_gpu_s - gpu_s), (standing,)))
    return tuple(epochs)


@dataclass(frozen=True, slots=True)
class _Node:
    """A value of a file, with its path of keys."""

    path: Path
    key: str
    value: Any

    def wrong(self, what: str) -> UserError:
        """Returns an error about this value."""
        return UserError(f"{self.path}: key '{self.key}': {what}; correct the file")

    def under(self, key: str) -> "_Node":
        """Returns the value of a required key."""
        if not isinstance(self.value, dict) or key not in self.value:
            raise UserError(f"{self.path}: key '{self._name(key)}' is missing; name a file of profiles")
        return _Node(self.path, self._name(key), self.value[key])

    def by_number(self) -> "dict[int, _Node]":
        """Returns the values of an object whose keys are integers."""
        if not isinstance(self.value, dict):
            raise self.wrong("is not an object")
        found = {}
        for key, value in self.value.items():
            if not key.isdecimal():
                raise self.wrong(f"{key!r} is not the number of a task")
            found[int(key)] = _Node(self.path, self._name(key), value)
        return found

    def items(self, count: int | None = None) -> "list[_Node]":
        """Returns the elements of a list, which must have ``count`` if given."""
        if not isinstance(self.value, list) or (count is not None and len(self.value) != count):
            raise self.wrong(f"is not a list{f' of {count}' if count else ''}")
        return [_Node(self.path, self._name(str(place)), value) for place, value in enumerate(self.value)]

    def number(self, most: float | None = None) -> float:
        """Returns a finite, non-negative number, at most ``most`` if given."""
        usable = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        if not usable or not 0 <= self.value < math.inf or (most is not None and self.value > most):
            raise self.wrong(f"{self.value!r} is not a number from 0{f' to {most:g}' if most else ' on'}")
        return float(self.value)

    def _name(self, key: str) -> str:
        return f"{self.key}.{key}" if self.key else key


def _entries(node: _Node) -> list[_Entry]:
    entries: dict[RetrainConfig, _Entry] = {}
    for item in node.items():
        name, _start, end, resource_time, _model = item.items(5)
        number, _, epochs = str(name.value).partition("_")
        if not (number.isdecimal() and epochs.isdecimal() and 0 < int(epochs) <= MOST_EPOCHS):
            raise name.wrong(
                f"{name.value!r} is not a number of hyperparameters and 1 to {MOST_EPOCHS} epochs, as 3_8"
            )
        config = RetrainConfig(int(epochs), _BATCH, int(number), 0, 1.0)
        if config in entries:
            raise name.wrong(f"{name.value} stands there twice")
        family = Family(config.trainable_blocks, config.head_width, config.batch_size)
        entries[config] = _Entry(config, family, end.number(1.0), resource_time.number())
    if not entries:
        raise node.wrong("is empty")
    return [entries[config] for config in sorted(entries)]


def _lowest(node: _Node) -> float:
    if not isinstance(node.value, dict) or not node.value:
        raise node.wrong("is not an object with a start accuracy")
    return min(node.under(key).items(2)[0].number(1.0) for key in node.value)


def _inference(every: int) -> InferenceOption:
    config = InferenceConfig(every, _RESOLUTION)
    share_milli = -(-FULL_SHARE_MILLI // every)
    age_us = oldest_result_us(config, share_milli, FULL_SHARE_MILLI / FULL_GPU_MILLI / FPS, FPS)
    return InferenceOption(config, prior_relative_accuracy(config, _RESOLUTION), share_milli, age_us)


_INFERENCE = tuple(_inference(every) for every in _EVERY)
