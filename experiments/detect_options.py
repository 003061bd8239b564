"""Options that the recipes about detectors share."""

from pathlib import Path
from typing import Annotated

import typer

Student = Annotated[Path, typer.Option(exists=True, dir_okay=False, help="Weights of the student.")]
Golden = Annotated[Path, typer.Option(exists=True, dir_okay=False, help="A detector's ONNX file.")]
Side = Annotated[int, typer.Option(min=64, help="Of a frame, pixels; a multiple of 32.")]
Every = Annotated[int, typer.Option(min=1, help="Take every k-th frame.")]
Labelled = Annotated[int, typer.Option(min=1, help="Frames to train on; a window has 24.")]
Jobs = Annotated[int, typer.Option(min=1, help="Cases at a time, each in a process of its own.")]
