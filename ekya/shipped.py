"""Where the files that come with Ekya are: the default fleet and the small weights."""

from pathlib import Path

from ekya.errors import UserError

_PACKAGE = Path(__file__).resolve().parent


def shipped_root() -> Path:
    """The folder that holds ``golden_models/`` and ``datasets/``.

    The checkout where Ekya runs from one, so that a change there counts at once; otherwise the copy
    inside the installed package.
    """
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "datasets").is_dir():
        return checkout
    return _PACKAGE / "_shipped"


def shipped_path(relative: str) -> Path:
    """A shipped file or folder, for example ``datasets/synthetic_city/fleet.yaml``.

    Raises:
        UserError: it is not there, so the installation is not whole.
    """
    path = shipped_root() / relative
    if not path.exists():
        raise UserError(f"{path}: this file comes with Ekya and is missing; install Ekya again")
    return path
