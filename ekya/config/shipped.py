"""Paths of the files that ship with Ekya: the default fleet and the small weights."""

from pathlib import Path

from ekya.core.errors import UserError

DETECTOR_BASE = "golden_models/synthetic_city_fastestdet_base.safetensors"
"""Weights from which a fleet's detectors begin if none are named."""

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_root() -> Path:
    """Returns the folder that holds ``golden_models/`` and ``datasets/``.

    In a checkout it is the checkout, so that a change there takes effect immediately; otherwise the copy
    inside the installed package.
    """
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "datasets").is_dir():
        return checkout
    return _PACKAGE / "_shipped"


def shipped_path(relative: str) -> Path:
    """Returns the path of a shipped file or folder, for example ``datasets/synthetic_city/fleet.yaml``.

    Raises:
        UserError: it is missing, so the installation is incomplete.
    """
    path = shipped_root() / relative
    if not path.exists():
        raise UserError(f"{path}: this file comes with Ekya and is missing; install Ekya again")
    return path


def is_shipped(path: Path) -> bool:
    """Returns whether a file of weights came with Ekya."""
    return path.parent == shipped_root() / "golden_models"


def describe_better_base(fleet: str = "FLEET") -> str:
    """Returns advice for a run that begins from a shipped base; ``fleet`` is the name of a fleet file."""
    return (
        f"`ekya edge train {fleet} --out base.safetensors` makes one from labelled recordings, and "
        "`--student base.safetensors` begins from it"
    )


def shipped_detector() -> Path:
    """Returns the weights of a ``fastestdet`` from which a fleet's detectors begin if none are named.

    Raises:
        UserError: they are missing, so the installation is incomplete.
    """
    return shipped_path(DETECTOR_BASE)
