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
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.errors import UserError
from ekya.core.profile import family_of
from ekya.core.trace import (
    BASE,
    Epoch,
    Predicted,
    RecordedStart,
    RecordedTraining,
    Standing,
    StreamTrace,
    StreamWindow,
    Trace,
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
    cities = {path.stem: _Profiles.read(path) for path in sorted(files)}
    windows = min((len(city.tasks) for city in cities.values()), default=0)
    entries = (
        one for city in cities.values() for task in city.taskwise_train_profiles.values() for one in task
    )
    return Trace(
        window_us=seconds_to_us(WINDOW_S),
        gpu="as the public profiles were measured",
        classes=(),
        retrain_configs=tuple(sorted({entry.config for entry in entries})),
        inference_configs=tuple(option.config for option in _INFERENCE),
        streams=tuple(
            StreamTrace(StreamId(name), FPS, city.windows(windows)) for name, city in sorted(cities.items())
        ),
    )


def _config_of(name: object) -> RetrainConfig:
    number, _, epochs = str(name).partition("_")
    if not (number.isdecimal() and epochs.isdecimal() and 0 < int(epochs) <= MOST_EPOCHS):
        raise ValueError(f"is not a number of hyperparameters and 1 to {MOST_EPOCHS} epochs, as 3_8")
    return RetrainConfig(int(epochs), _BATCH, int(number), 0, 1.0)


_Accuracy = Annotated[float, Field(ge=0.0, le=1.0, strict=True)]


class _Entry(NamedTuple):
    """One entry of a task's list."""

    config: Annotated[RetrainConfig, BeforeValidator(_config_of)]
    start_accuracy: Any
    end_accuracy: _Accuracy
    gpu_s: Annotated[float, Field(ge=0.0, allow_inf_nan=False, strict=True)]
    model: Any


def _sorted(entries: list[_Entry]) -> list[_Entry]:
    counts = Counter(entry.config for entry in entries)
    for config, count in counts.items():
        if count > 1:
            raise ValueError(f"{config.head_width}_{config.epochs} stands there twice")
    return sorted(entries, key=lambda entry: entry.config)


_Entries = Annotated[list[_Entry], Field(min_length=1), AfterValidator(_sorted)]
_Start = tuple[_Accuracy, Any]
_Starts = Annotated[dict[str, _Start], Field(min_length=1)]
_Task = Annotated[int, Field(ge=0)]


class _Profiles(BaseModel):
    """Content of a file: each field is one of its keys."""

    taskwise_train_profiles: Annotated[dict[_Task, _Entries], Field(min_length=1)]
    taskwise_predicted_profiles: dict[_Task, _Entries]
    taskwise_infer_profiles: dict[_Task, _Starts]

    @staticmethod
    def read(path: Path) -> "_Profiles":
        """Reads and checks a file."""
        try:
            with user_errors(path):
                found = _Profiles.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"] if part != "[key]")
            what = f"{first['input']!r}: {first['msg']}"
            raise UserError(f"{path}: key '{key}': {what}; correct the file") from error
        except ValueError as error:
            raise UserError(f"{path}: this is not JSON ({error}); fetch the file again") from error
        for key in (PREDICTED, STARTS):
            for task in sorted(set(found.taskwise_train_profiles) - set(getattr(found, key))):
                raise UserError(f"{path}: key '{key}': task {task} of {TRAINED} is missing; correct the file")
        return found

    @property
    def tasks(self) -> list[int]:
        """Tasks in rising order."""
        return sorted(self.taskwise_train_profiles)

    def start(self, task: int) -> float:
        """Returns the lowest start accuracy of a task."""
        return min(accuracy for accuracy, _ in self.taskwise_infer_profiles[task].values())

    def windows(self, tasks: int) -> tuple[StreamWindow, ...]:
        """Returns window 0, which trains nothing, and one for each of the first tasks."""
        chosen = self.tasks[:tasks]
        return (
            self._window(0, self.start(chosen[0]), [], []),
            *(
                self._window(
                    index,
                    self.start(task),
                    self.taskwise_train_profiles[task],
                    self.taskwise_predicted_profiles[task],
                )
                for index, task in enumerate(chosen, start=1)
            ),
        )

    def _window(
        self, index: int, start: float, trained: list[_Entry], predicted: list[_Entry]
    ) -> StreamWindow:
        families = sorted({family_of(entry.config) for entry in trained})
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
            starts=(RecordedStart(BASE, Standing(index, start, start)),),
            trainings=tuple(
                RecordedTraining(
                    family,
                    1.0,
                    BASE,
                    _epochs(index, start, [e for e in trained if family_of(e.config) == family]),
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
                        if family_of(entry.config) == family
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


def _inference(every: int) -> InferenceOption:
    config = InferenceConfig(every, _RESOLUTION)
    share_milli = -(-FULL_SHARE_MILLI // every)
    age_us = oldest_result_us(config, share_milli, FULL_SHARE_MILLI / FULL_GPU_MILLI / FPS, FPS)
    return InferenceOption(config, prior_relative_accuracy(config, _RESOLUTION), share_milli, age_us)


_INFERENCE = tuple(_inference(every) for every in _EVERY)
