"""Detects the installed torch build from its files, since importing torch takes seconds."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path

_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", re.MULTILINE)
_VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_NEEDS_TORCH = re.compile(r"^torch\s*\(?\s*(==|>=)\s*(\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed torch and torchvision.

    Attributes:
        version, vision_version: versions of the two packages; empty where one is not installed.
        cuda: version of CUDA that torch was built with; None for a build without CUDA.
        broken: why torch cannot be imported, as a clause; empty where no problem was found.
    """

    version: str = ""
    vision_version: str = ""
    cuda: str | None = None
    broken: str = ""


def find_torch(path: Sequence[str] | None = None) -> TorchBuild:
    """Inspects the installed packages without importing them.

    Args:
        path: folders with packages; by default those of this Python.
    """
    torch, vision = _installed("torch", path), _installed("torchvision", path)
    if torch is None or vision is None:
        return TorchBuild(broken=f"{'torch' if torch is None else 'torchvision'} is not installed")
    # find_spec also covers editable installations; tests pass a path and must not see those.
    spec = find_spec("torch") if path is None else PathFinder.find_spec("torch", path)
    if spec is None or spec.origin is None:
        return TorchBuild(torch.version, vision.version, broken="the files of torch are missing")
    return _inspect(Path(spec.origin).parent, torch, vision)


def _installed(name: str, path: Sequence[str] | None) -> Distribution | None:
    return next(iter(distributions(name=name, path=list(sys.path if path is None else path))), None)


def _inspect(folder: Path, torch: Distribution, vision: Distribution) -> TorchBuild:
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return TorchBuild(torch.version, vision.version, broken=f"{folder / 'version.py'} is missing")
    cuda, stated = _CUDA.search(text), _VERSION.search(text)
    build = stated[1] if stated else torch.version
    compiled = PathFinder.find_spec("_C", [str(folder)])
    if compiled is None or compiled.origin is None:
        broken = f"{folder} has no compiled library for this Python"
    else:
        broken = _mismatch(build, vision.requires or [])
    return TorchBuild(build, vision.version, cuda[1] if cuda else None, broken)


def _mismatch(torch: str, needs: Sequence[str]) -> str:
    """Returns why torchvision does not match this torch version; empty where it does."""
    for need in needs:
        found = _NEEDS_TORCH.match(need)
        if found is None:
            continue
        here, needed = _numbers(torch), _numbers(found[2])
        if here < needed or (found[1] == "==" and here != needed):
            return f"torchvision needs torch {found[1]} {found[2]}, and {torch} is installed"
    return ""


def _numbers(text: str) -> tuple[int, ...]:
    # Without the local part, such as +cu130, whose digits are not of the version.
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("+")[0]))
