"""Self-tests on disk, by processor, instruction set, GPU, version of torch and edge model."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.gpu.nvml import list_gpus
from ekya.models.edge.forward import SelfTest
from ekya.pipeline.speed_file import speeds_path
from ekya.system.files import write_text_atomic
from ekya.system.host import instruction_set, processor_name

_LOG = logging.getLogger(__name__)
_SELF_TEST = TypeAdapter(SelfTest)


@dataclass(frozen=True, slots=True)
class SelfTestKey:
    """Configuration for which a self-test is valid.

    Attributes:
        processor, instruction_set: as ``system/host.py`` names them.
        gpu: the vendor's name of it; empty if models run on the CPU.
        torch: its version.
        architecture: of the edge model.
        sides: resolutions of Λ in pixels, as text.
    """

    processor: str
    instruction_set: str
    gpu: str
    torch: str
    architecture: str
    sides: str


def key_here(device: str, architecture: str, sides: Sequence[int]) -> SelfTestKey:
    """Returns the key of this machine, without importing torch."""
    gpus = list_gpus().gpus if device.startswith("cuda") else ()
    return SelfTestKey(
        processor_name(),
        instruction_set(),
        gpus[0].name if gpus else "",
        version("torch"),
        architecture,
        " ".join(str(side) for side in sorted(sides)),
    )


def self_tests_path() -> Path:
    """Returns the path of the self-tests, beside the measured speeds."""
    return speeds_path().with_name("self-tests.json")


def load_self_test(path: Path, key: SelfTestKey) -> SelfTest | None:
    """Returns the stored self-test; None if there is none or the file is unreadable, so it is run again."""
    for entry in _entries(path):
        if entry.get("key") == asdict(key):
            try:
                return _SELF_TEST.validate_python(entry["found"])
            except (ValidationError, KeyError):
                return None
    return None


def save_self_test(path: Path, key: SelfTestKey, found: SelfTest) -> None:
    """Stores a self-test in place of an earlier one; if that fails, the next run tests again."""
    kept = [entry for entry in _entries(path) if entry.get("key") != asdict(key)]
    kept.append({"key": asdict(key), "found": _SELF_TEST.dump_python(found, mode="json")})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(path, json.dumps(kept, indent=1) + "\n")
    except (OSError, UserError) as error:
        _LOG.info("the self-test is not kept: %s", error)


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
