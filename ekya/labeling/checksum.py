"""Weights that are not what their card says are refused."""

import hashlib
import re
from pathlib import Path

from ekya.errors import UserError
from ekya.files import user_errors

_CARD_LINE = re.compile(r"^(?:- )?sha256: *`?([0-9a-f]{64})`?$", re.MULTILINE)


def verified(weights: Path, expected: str | None = None) -> Path:
    """The same path, after the file was compared with what it should be.

    Args:
        weights: the file.
        expected: its SHA-256 in hexadecimal digits, as ``golden.sha256`` gives it; None takes what the card
            beside it says (a file of the same name that ends in ``.md``), if there is one that says so.

    Raises:
        UserError: they differ, or the file cannot be read.
    """
    card = weights.with_suffix(".md")
    said_by = "golden.sha256" if expected is not None else card.name
    if expected is None and card.is_file():
        found = _CARD_LINE.search(card.read_text(encoding="utf-8"))
        expected = found[1] if found else None
    if expected is not None and weights.is_file():
        held = sha256_of(weights)
        if held != expected.lower():
            raise UserError(
                f"{weights}: its sha256 is {held[:12]}... and {said_by} says {expected[:12]}...; it is "
                "damaged or another file, so get it again, or correct the checksum."
            )
    return weights


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, 64 hexadecimal digits."""
    with user_errors(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
