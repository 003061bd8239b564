"""Metadata of files of weights, read without torch."""

from pathlib import Path

import safetensors


def read_metadata(path: Path) -> dict[str, str]:
    """Returns the metadata of a safetensors file; empty where there is none, or no such file."""
    try:
        with safetensors.safe_open(path, framework="numpy") as weights:
            return weights.metadata() or {}
    except (OSError, safetensors.SafetensorError):
        return {}
