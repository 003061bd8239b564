"""Runs the generators of data sets as a user does, in this process."""

import runpy
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

DATASETS = Path(__file__).parents[2] / "datasets"


def run_generator(dataset: str, *options: object) -> int:
    """Returns the exit code."""
    script = str(DATASETS / dataset / "generate.py")
    with patch.object(sys, "argv", [script, *map(str, options)]):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            return int(ended.code or 0)
    return 0


def contents(root: Path) -> dict[str, bytes]:
    """Returns the bytes of all files by their paths."""
    return {
        str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()
    }


def refusal(capsys: pytest.CaptureFixture[str], dataset: str, *options: object) -> str:
    """Returns the one sentence with which a generator refuses options."""
    assert run_generator(dataset, *options) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err
