"""What this machine takes for a fleet's work, measured in a process of its own before a run.

The process imports torch, so that whoever starts a run need not, and it is gone before the run begins. See
``probe_child.py`` for what it does.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, cast

from pydantic import TypeAdapter, ValidationError

from ekya.config import FleetConfig, dump_fleet
from ekya.core.host import HostCosts
from ekya.core.profile import Family
from ekya.errors import UserError
from ekya.gpu.processor import instruction_set, processor_name
from ekya.learning.forward import SelfTest
from ekya.streams.credentials import masked

_LAST_WORDS = 300


@dataclass(frozen=True, slots=True)
class ProbedHost:
    """What was measured.

    Attributes:
        classes: the fleet's, those that occur where it leaves them open.
        costs: of its work.
        self_test: how forward passes are run here, and why.
    """

    classes: tuple[str, ...]
    costs: HostCosts
    self_test: SelfTest

    def summary(self) -> dict[str, object]:
        """As ``summary.json`` tells it: JSON values."""
        return {
            "processor": processor_name(),
            "instruction_set": instruction_set(),
            "cores": self.costs.cores,
            "forward": _forward(self.self_test),
            "frame_ms": {
                stream: {str(side): round(gpu_s * 1e3, 3) for side, gpu_s in costs.frame_gpu_s.items()}
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


class Probe:
    """Measures in the background, from when it is made; ``result`` waits. A context manager: leaving ends it.

    Args:
        fleet: its sources are opened, and its models loaded.
        device: torch's name of where models run.
        cores: how many this process may use.
        seed: of the run.
        again: repeat the self-test, whatever was kept of an earlier one.
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
        self._folder = tempfile.TemporaryDirectory(prefix="ekya-probe-")
        self._answer = Path(self._folder.name) / "answer.json"
        self._errors = (Path(self._folder.name) / "errors").open("wb+")
        order = {"fleet": dump_fleet(fleet), "device": device, "cores": cores, "seed": seed, "again": again}
        self._process = popen(
            [sys.executable, "-m", "ekya.probe_child", str(self._answer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )
        # Of a process that has died by now ``result`` tells.
        with suppress(BrokenPipeError), cast(IO[bytes], self._process.stdin) as asked:
            asked.write(json.dumps(order).encode())

    def result(self) -> ProbedHost:
        """Waits until all is measured.

        Raises:
            UserError: the fleet has a file that cannot be read, or the process died.
        """
        self._process.wait()
        try:
            answer: dict[str, Any] = json.loads(self._answer.read_text(encoding="utf-8"))
            if "refused" in answer:
                raise UserError(str(answer["refused"]))
            return _PROBED.validate_python(answer)
        except (OSError, ValueError, ValidationError) as error:
            why = self._last_words() or str(error)
            raise UserError(
                f"this machine could not be measured ({why}); `ekya doctor` says what is missing"
            ) from error

    def close(self) -> None:
        """Ends the process. May be called twice."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return masked(lines[-1].strip())[:_LAST_WORDS] if lines else ""
