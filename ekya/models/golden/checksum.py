"""Verifies that files of weights exist, and their checksums."""

import hashlib
import re
from pathlib import Path

from ekya.core.errors import UserError
from ekya.system.files import user_errors

_CARD_LINE = re.compile(r"^(?:- )?sha256: *`?([0-9a-f]{64})`?$", re.MULTILINE)


def verified(weights: Path, expected: str | None = None) -> Path:
    """Returns the same path, after verifying the checksum of the file.

    Args:
        weights: the file.
        expected: its SHA-256 in hexadecimal digits, as ``golden.sha256`` gives it; None takes it from the
            card beside the file (same name, ending in ``.md``), if that states one.

    Raises:
        UserError: the checksums differ, or the file cannot be read.
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


def existing(name: str, weights: Path | None) -> Path:
    """Returns the file of weights of a model without a download.

    Raises:
        UserError: no file is named, or there is none.
    """
    if weights is None:
        raise UserError(f"{name} has no download; give its ONNX file under the key 'weights'.")
    if not weights.is_file():
        raise UserError(f"{weights}: no such file, named by the key 'weights'; correct the path.")
    return weights


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file, 64 hexadecimal digits."""
    with user_errors(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
