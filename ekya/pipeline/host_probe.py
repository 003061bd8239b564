"""Measures the costs of a fleet's work on this machine, in a separate process before a run.

The process (``measure_host.py``) imports torch, so that its parent need not, and exits before the run begins.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Self, cast

from pydantic import TypeAdapter, ValidationError

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import dump_fleet
from ekya.core.configs import GOLDEN_RESOLUTION
from ekya.core.errors import UserError
from ekya.core.host import HostCosts, StreamCosts
from ekya.core.profile import Family
from ekya.core.units import StreamId
from ekya.gpu.nvml import list_gpus
from ekya.models.edge.forward import SelfTest
from ekya.models.onnx_wheels import onnxruntime_version
from ekya.streams.ingest.credentials import mask_passwords
from ekya.system.files import user_errors, write_text_atomic
from ekya.system.host import cpu_limit, instruction_set, processor_name

_ERROR_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class ProbedHost:
    """Result of the measurement.

    Attributes:
        classes: the fleet's classes; those that occur, if the fleet leaves them open.
        costs: costs of the fleet's work.
        self_test: how forward passes are run here, and why.
        teacher_warnings: about the fleet's golden model, in sentences.
        odd: what is odd in the first frames of its streams, in sentences; not kept for a later start.
        golden_layout: ``golden.layout``, as the first frames of the cameras show it; None if they do not.
        golden_device: where the golden model runs, for display; None of a label file.
    """

    classes: tuple[str, ...]
    costs: HostCosts
    self_test: SelfTest
    teacher_warnings: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    golden_layout: str | None = None
    golden_device: str | None = None

    def summary(self) -> dict[str, object]:
        """Returns JSON values for ``host`` in ``summary.json``."""
        return {
            "processor": processor_name(),
            "instruction_set": instruction_set(),
            "cores": self.costs.cores,
            "forward": _forward(self.self_test),
            "frame_ms": {
                stream: {
                    "golden" if side == GOLDEN_RESOLUTION else str(side): round(gpu_s * 1e3, 3)
                    for side, gpu_s in costs.frame_gpu_s.items()
                }
                for stream, costs in self.costs.streams.items()
            },
            "label_ms": round(self.costs.label_gpu_s * 1e3, 3),
            "training_ms_per_crop": {
                _family_name(of.family): {
                    "prepare": round(of.prepare_gpu_s * 1e3, 4),
                    "epoch": round(of.epoch_gpu_s * 1e3, 4),
                }
                for of in self.costs.families
            },
        }


def _family_name(family: Family) -> str:
    return f"{family.trainable_blocks} blocks, head of {family.head_width}, batches of {family.batch_size}"


def _forward(test: SelfTest) -> dict[str, object]:
    return {
        "way": str(test.way),
        "plain_ms": round(test.plain_ms, 3),
        "chosen_ms": round(test.chosen_ms, 3),
        "tried": {
            str(tried.way): {"times": list(tried.times), "refused": tried.refused or None}
            for tried in test.tried
        },
    }


_PROBED = TypeAdapter(ProbedHost)

_BUDGET = {"labels_per_window", "frames_per_window", "gpu_s_per_window", "layout"}
"""Keys of ``golden`` that say how much is labelled or what answers mean, and not what a label costs."""

_LIBRARIES = ("torch", "opencv-python-headless")


def keep_host(path: Path, host: ProbedHost, fleet: FleetConfig, device: str) -> None:
    """Writes a measurement of a fleet's work, for a service that starts again on this machine.

    Raises:
        UserError: full disk, no permission and the like.
    """
    content = {
        "of": _measured(fleet, device),
        "sources": {stream.id: stream.source.model_dump(mode="json") for stream in fleet.streams},
        "host": _PROBED.dump_python(replace(host, odd=()), mode="json"),
    }
    write_text_atomic(path, json.dumps(content) + "\n")


def kept_host(path: Path, fleet: FleetConfig, device: str) -> ProbedHost | None:
    """Returns a kept measurement of this work on this machine; None without one.

    A camera that was added or changed since is taken to cost as much as the dearest that was measured: a run
    measures the costs of its frames anyway, within seconds.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["of"] != _measured(fleet, device):
            return None
        host, sources = _PROBED.validate_python(content["host"]), dict(content["sources"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None
    known, classes = host.costs.streams, fleet.classes
    # A class more costs no more.
    if classes is None or classes[: len(host.classes)] != host.classes or not known:
        return None
    usual = dearest(known)
    streams = {
        stream.id: known.get(stream.id, usual)
        if sources.get(stream.id) == stream.source.model_dump(mode="json")
        else usual
        for stream in fleet.streams
    }
    return replace(host, classes=classes, costs=replace(host.costs, streams=streams))


def dearest(costs: Mapping[StreamId, StreamCosts]) -> StreamCosts:
    """Returns the highest costs of a frame among cameras, at least one."""
    return max(costs.values(), key=lambda one: max(one.frame_gpu_s.values()))


def _measured(fleet: FleetConfig, device: str) -> list[object]:
    """Returns what a measurement depends on, as JSON values: the machine, and the work beside the cameras."""
    golden = fleet.golden.model_dump(mode="json", exclude=_BUDGET)
    work = (fleet.edge, fleet.inference, fleet.retraining)
    gpus = [gpu.name for gpu in list_gpus().gpus]
    libraries = [*map(version, _LIBRARIES), onnxruntime_version()]
    machine = [processor_name(), instruction_set(), cpu_limit(), device, gpus, *libraries]
    return [*machine, golden, *(part.model_dump(mode="json") for part in work)]


class CostProbe:
    """Starts the measurement in the background; ``result`` waits for it. A context manager that ends it.

    Args:
        fleet: its sources are opened and its models loaded.
        device: torch device of the models.
        cores: number of cores that this process may use.
        seed: of the run.
        again: repeat the self-test even if an earlier result is cached.
        popen: starts the process.
    """

    def __init__(
        self,
        fleet: FleetConfig,
        device: str,
        cores: float,
        seed: int = 0,
        again: bool = False,
        popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
    ) -> None:
        with user_errors(Path("TMPDIR")):
            self._folder = tempfile.TemporaryDirectory(prefix="ekya-probe-")
        self._answer = Path(self._folder.name) / "answer.json"
        # Not a pipe: it is not read while the process runs, and a full one would block it.
        self._errors = (Path(self._folder.name) / "errors").open("wb+")
        given = {"fleet": dump_fleet(fleet), "device": device, "cores": cores, "seed": seed, "again": again}
        self._process = popen(
            [sys.executable, "-P", "-m", "ekya.pipeline.measure_host", str(self._answer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )
        # If the process has already died, ``result`` reports the error.
        with suppress(BrokenPipeError), cast(IO[bytes], self._process.stdin) as stdin:
            stdin.write(json.dumps(given).encode())

    def result(self) -> ProbedHost:
        """Waits for the result.

        Raises:
            UserError: a file of the fleet cannot be read, or the process died.
        """
        self._process.wait()
        try:
            answer: dict[str, Any] = json.loads(self._answer.read_text(encoding="utf-8"))
            if "refused" in answer:
                raise UserError(str(answer["refused"]))
            return _PROBED.validate_python(answer)
        except (OSError, ValueError, ValidationError) as error:
            why = self._last_error() or str(error)
            raise UserError(
                f"this machine could not be measured ({why}); `ekya doctor` says what is missing"
            ) from error

    def close(self) -> None:
        """Kills the process. May be called twice."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return mask_passwords(lines[-1].strip())[:_ERROR_CHARACTERS] if lines else ""
