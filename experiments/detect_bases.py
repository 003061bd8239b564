"""F1 of detectors on video before and after one retraining, by the base that they start from.

    python experiments/detect_bases.py --golden GOLDEN.onnx --video A.mp4 --video B.mp4 \\
        --base coco=FastestDet_coco.safetensors --base own=synthetic_city_fastestdet_base.safetensors

The golden model's objects count as the truth. A base is retrained on frames of a clip's first third and
tested on its last half. Takes about four minutes of one core for each base, clip and seed.
"""

import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from city_windows import one_thread
from detect_clips import first_and_last, labelled_clip, retrained
from detect_options import Every, Side
from detect_scores import f1_of
from recipe import Json
from rich.table import Table

from ekya.cli.output import output
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.detection.weights import open_detector_weights
from ekya.models.edge.model import EdgeModel
from ekya.models.training.frames import LabelledFrames
from ekya.streams.synthetic.scene import KINDS

log = logging.getLogger("detect_bases")


@dataclass(frozen=True, slots=True)
class Row:
    """One base on one clip.

    Attributes:
        clip, base: names.
        blocks: number of trained blocks.
        before, after: F1 in [0, 1] without and with a retraining, the mean over the seeds.
        training_s: time of a retraining.
    """

    clip: str
    base: str
    blocks: int
    before: float
    after: float
    training_s: float


def rows_of(
    clip: str,
    frames: LabelledFrames,
    bases: dict[str, EdgeModel],
    labelled: int,
    blocks: list[int],
    epochs: int,
    seeds: int,
) -> list[Row]:
    """Measures all bases on one clip."""
    training, test = first_and_last(frames, labelled)
    log.info("%s: %d frames to train, %d to test", clip, len(training), len(test))
    rows = []
    for name, base in bases.items():
        before = f1_of(base, test)
        for count in blocks:
            gamma = RetrainConfig(epochs, 8, head_width=0, trainable_blocks=count, data_fraction=1.0)
            began = time.thread_time()
            models = [retrained(base, training, gamma, seed) for seed in range(seeds)]
            took_s = (time.thread_time() - began) / seeds
            after = float(np.mean([f1_of(model, test) for model in models]))
            rows.append(Row(clip, name, count, before, after, took_s))
            log.info("%s, %s, %d blocks: %.3f to %.3f", clip, name, count, before, after)
    return rows


def main(
    golden: Annotated[Path, typer.Option(help="ONNX file of the detector that labels.")],
    video: Annotated[list[Path], typer.Option(help="Clip; may be repeated.")],
    base: Annotated[list[str], typer.Option(metavar="NAME=FILE", help="Weights; may be repeated.")],
    side: Side = 352,
    every: Every = 8,
    labelled: Annotated[int, typer.Option(min=1, help="Frames to train on.")] = 25,
    blocks: Annotated[list[int] | None, typer.Option(help="Trained blocks; may be repeated.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Of a retraining.")] = 40,
    seeds: Annotated[int, typer.Option(min=1, help="Retrainings whose mean is taken.")] = 2,
    json_to: Json = None,
) -> None:
    """Measure bases of detectors on video."""
    named = [one.partition("=") for one in base]
    if wrong := [one for one, (_, equals, file) in zip(base, named, strict=True) if not equals or not file]:
        raise UserError(f"--base {wrong[0]}: has no file; write NAME=FILE")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    one_thread()
    with output(json_to) as out:
        bases = {name: open_detector_weights(Path(file), FASTESTDET, KINDS) for name, _, file in named}
        rows = []
        for path in video:
            frames = labelled_clip(path, golden, side, every)
            rows += rows_of(path.stem, frames, bases, labelled, blocks or [1, 3, 5], epochs, seeds)
        out.report({"rows": [asdict(row) for row in rows]})
        table = Table("clip", "base", "blocks", "before", "after", "training s")
        for row in rows:
            figures = f"{row.before:.1%}", f"{row.after:.1%}", f"{row.training_s:.0f}"
            table.add_row(row.clip, row.base, str(row.blocks), *figures)
        out.console.print(table)


if __name__ == "__main__":
    typer.run(main)
