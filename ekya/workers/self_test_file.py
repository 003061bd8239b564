"""Self-tests on disk: by processor, instruction set, GPU, version of torch and edge model."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ekya.errors import UserError
from ekya.files import write_text_atomic
from ekya.gpu.nvml import list_gpus
from ekya.gpu.processor import instruction_set, processor_name
from ekya.learning.forward import SelfTest
from ekya.workers.speed_file import speeds_path

_LOG = logging.getLogger(__name__)
_SELF_TEST = TypeAdapter(SelfTest)


@dataclass(frozen=True, slots=True)
class SelfTestKey:
    """What a self-test holds for.

    Attributes:
        processor, instruction_set: as ``gpu/processor.py`` names them.
        gpu: the maker's name of it; empty where models run on the processor.
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
    """The key of this machine; torch is not imported for it."""
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
    """Where self-tests are kept, beside measured speeds."""
    return speeds_path().with_name("self-tests.json")


def load_self_test(path: Path, key: SelfTestKey) -> SelfTest | None:
    """What was found; None where nothing was, or the file cannot be read: then it is found anew."""
    for entry in _entries(path):
        if entry.get("key") == asdict(key):
            try:
                return _SELF_TEST.validate_python(entry["found"])
            except (ValidationError, KeyError):
                return None
    return None


def save_self_test(path: Path, key: SelfTestKey, found: SelfTest) -> None:
    """Keeps a self-test, in place of an earlier one; where it cannot be written, the next run tests again."""
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
