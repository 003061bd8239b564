"""Results of a run as Python objects: its summary, its report and its folder."""

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ekya.core.errors import UserError
from ekya.results.storage.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """Result of one camera; accuracies are in [0, 1], and None where they are not known.

    Attributes:
        id: its name.
        mean_accuracy: of what served.
        without_retraining: of the base model, on the sampled frames.
        gain: of what served over the base model, on these frames.
        retrained: number of windows in which it was retrained.
    """

    id: str
    mean_accuracy: float | None
    without_retraining: float | None
    gain: float | None
    retrained: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a run.

    Attributes:
        scheduler: its name.
        world: ``live``, ``emulated`` or ``trace``.
        seed: of the run.
        gpus: number of GPUs; cores stand for them where there are none.
        mean_accuracy: over cameras and windows, in [0, 1]; None where it is not known.
        streams: each camera's, by its name.
        problem: why the run was no success; None if it was one.
        values: everything in ``summary.json``.
    """

    scheduler: str
    world: str
    seed: int
    gpus: float
    mean_accuracy: float | None
    streams: Mapping[str, StreamSummary]
    problem: str | None
    values: Mapping[str, Any]

    @staticmethod
    def from_values(values: Mapping[str, Any]) -> "Summary":
        """Returns the summary of the values of a ``summary.json``, or of a simulation."""
        missed = values["adaptation"]["sentence"] if values.get("adaptation", {}).get("missed") else None
        streams = {
            stream: StreamSummary(
                stream,
                one["mean_accuracy"],
                one.get("without_retraining"),
                one.get("gain"),
                sum(window["retrained"] for window in one["windows"]),
            )
            for stream, one in values["streams"].items()
        }
        return Summary(
            values["scheduler"],
            values["world"],
            values["seed"],
            values["gpus"],
            values["mean_accuracy"],
            streams,
            values.get("health", {}).get("sentence") or missed,
            values,
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a run, which a notebook shows.

    Attributes:
        path: of the HTML file, which needs no other.
    """

    path: Path

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that has ended.

    Attributes:
        folder: where everything about it is.
    """

    folder: Path

    @property
    def summary(self) -> Summary:
        """Its result.

        Raises:
            UserError: it has none yet.
        """
        path = RunFolder(self.folder).summary
        if not path.is_file():
            raise UserError(f"{self.folder}: it has no summary yet; a run has one when it has ended")
        return Summary.from_values(json.loads(path.read_text(encoding="utf-8")))

    @property
    def report(self) -> Report:
        """Its report."""
        return Report(RunFolder(self.folder).report)
