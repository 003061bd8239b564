"""Planning problems: single windows of generated traces, on which schedulers are measured."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.core.trace import Origin, StreamTrace, Trace
from ekya.core.units import FULL_GPU_MILLI
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.simulation.trace.generate import generate_trace
from ekya.simulation.trace.generator_parameters import (
    DEFAULT_PARAMETERS,
    SPEEDS,
    GeneratorParameters,
    SpeedName,
)
from ekya.system.files import user_errors

_WINDOW = 2
"""First window that starts from a retrained model."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Parameters of a problem apart from its streams.

    Attributes:
        quantum_milli, steal_milli, min_accuracy: δ, Δ and a_MIN.
    """

    quantum_milli: int = 50
    steal_milli: int = 50
    min_accuracy: float = 0.4


DEFAULT_SHAPE = Shape()


@dataclass(frozen=True, slots=True)
class Problem:
    """Parameters of one problem; see ``ProblemSet.view``."""

    seed: int
    streams: int
    gpus: float
    speed: SpeedName


def problem(
    seed: int,
    streams: int,
    gpus: float,
    speed: SpeedName = "linear",
    shape: Shape = DEFAULT_SHAPE,
    parameters: GeneratorParameters = DEFAULT_PARAMETERS,
) -> WindowView:
    """Returns a window at its opening, with the true profile of every γ and λ, nothing running."""
    trace = generate_trace(seed, streams, _WINDOW + 1, parameters, SPEEDS[speed])
    return view_of(trace, _WINDOW, round(gpus * FULL_GPU_MILLI), shape)


def view_of(trace: Trace, window: int, capacity_milli: int, shape: Shape = DEFAULT_SHAPE) -> WindowView:
    """Returns a window of a trace at its opening; every stream serves the model of the previous window.

    Streams that have ended before are left out.
    """
    return WindowView(
        now_us=window * trace.window_us,
        window_end_us=(window + 1) * trace.window_us,
        capacity_milli=capacity_milli,
        quantum_milli=shape.quantum_milli,
        steal_milli=shape.steal_milli,
        min_accuracy=shape.min_accuracy,
        streams=tuple(
            _stream_view(trace, stream, window) for stream in trace.streams if window < len(stream.windows)
        ),
        training_speed=trace.training_speed,
        inference_speed=trace.inference_speed,
    )


def _stream_view(trace: Trace, stream: StreamTrace, window: int) -> StreamView:
    here, before = stream.windows[window], Origin(window - 1)
    options = []
    for config in trace.retrain_configs:
        training = here.best_training(config, before)
        if training is not None:
            epoch = training.epochs[config.epochs - 1]
            options.append(RetrainOption(config, epoch.standings[0].served_accuracy, epoch.gpu_s))
    return StreamView(stream.stream, here.start_of(before).served_accuracy, tuple(options), here.inference)


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Problems of a file: every combination of the lists, ``seeds_each`` times.

    Attributes:
        streams: number in each problem.
        gpus_per_stream, speeds: the lists.
        seeds_each: problems per combination; seeds count up from ``first_seed``.
        shape, generator: parameters of the problems and of their traces.
    """

    streams: int
    gpus_per_stream: tuple[float, ...]
    speeds: tuple[SpeedName, ...]
    first_seed: int
    seeds_each: int
    shape: Shape
    generator: GeneratorParameters

    def problems(self) -> Iterator[Problem]:
        """Yields all problems, each with a different seed."""
        seed = self.first_seed
        for speed in self.speeds:
            for per_stream in self.gpus_per_stream:
                for _ in range(self.seeds_each):
                    yield Problem(seed, self.streams, per_stream * self.streams, speed)
                    seed += 1

    def view(self, of: Problem) -> WindowView:
        """Returns the window to plan of a problem."""
        return problem(of.seed, of.streams, of.gpus, of.speed, self.shape, self.generator)

    def trace(self, of: Problem, windows: int) -> Trace:
        """Returns a trace of the same streams; its window 2, if it has one, is the problem's."""
        return generate_trace(of.seed, of.streams, windows, self.generator, SPEEDS[of.speed])


_SETS = TypeAdapter(ProblemSet)


def load_problems(path: Path) -> ProblemSet:
    """Reads the problems of a YAML file such as ``experiments/problems.yaml``.

    Raises:
        UserError: the file is missing or damaged; names the key.
    """
    try:
        with user_errors(path):
            raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        return _SETS.validate_python(raw)
    except yaml.YAMLError as error:
        raise UserError(f"{path}: this is not YAML ({error}); correct it") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path}: key '{key}': {first['msg']}") from error
