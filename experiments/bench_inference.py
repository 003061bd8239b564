"""Ways to speed up inference on a device, each beside its baseline, in one run.

    python experiments/bench_inference.py
    python experiments/bench_inference.py --architecture mobilenet_v3_small --json -
    python experiments/bench_inference.py --full --device cuda

Crops are objects of the synthetic city, six a frame, least confident first, since differences show there.
The model is the base of the default fleet (fresh weights for another architecture). A call goes from pixels
in memory to classes in memory, as in a run. The ways of one question alternate call by call, so that a busy
machine slows them alike and their ratios hold; on a CPU times are of one thread. A way is refused, and not
timed, if its answers differ: half precision if logits are off by more than a hundredth of the largest or not
finite, any other if a class differs or a score by more than 1e-5.

- frames: one frame in a call, or several frames of the stream.
- passes: sixteen frames in three passes, or in one.
- layout: torch's default, channels-last, and kernels packed once (CPU only).
- half: 32 bits, and the two kinds of 16.
- graphs: kernels one by one, and as a CUDA graph (GPU only; the last row combines all).
- streams: the models of eight streams one by one; in one call, identical blocks in one batch and the
  others one by one; and all joined, in two ways. After retraining they have no block, three, or all but the
  head in common.

Under a minute on one core; ``--full`` makes ten times as many calls, for a reliable 99th percentile.
"""

import os
from typing import Annotated

# Must be set before numpy is imported: times are of one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import typer
from city_windows import one_thread, windows_of
from inference_ways import FRAMES, OBJECTS, SIDE, Bench, settled
from numpy.typing import NDArray
from recipe import RESULTS, Full, Json, Out, Seed, publish_rows, run
from rich.progress import Progress

from ekya.cli.command import open_output
from ekya.config.fleet_file import DEFAULT_FLEET
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import DEFAULT_ARCHITECTURE
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.edge.predictor import Predictor
from ekya.pipeline.base_model import base_model
from ekya.pipeline.discover_classes import fleet_classes
from ekya.streams.synthetic import CitySpec

ROUNDS, ALL_ROUNDS = 20, 200
MOST_S = 20.0
"""Upper bound of the time for one question in a quick run, in seconds."""


def city_crops(model: EdgeModel, count: int) -> NDArray[np.uint8]:
    """Returns objects of the first camera of the default fleet, the model's least confident ones first."""
    fleet = load_fleet(shipped_path(DEFAULT_FLEET))
    source = fleet.streams[0].source
    if not isinstance(source, CitySpec):
        raise UserError(f"{fleet.streams[0].id}: only cameras of the synthetic city know what is true")
    (seen,) = windows_of(source, fleet_classes(fleet), 30.0, 1, 5)
    if len(seen) < count:
        raise UserError(f"{fleet.streams[0].id}: shows {len(seen)} objects in half a minute, not {count}")
    _, sure = Predictor(model, way=PLAIN).predict(seen.crops, SIDE)
    return seen.crops[np.argsort(sure)[:count]]


def model_of(architecture: str, seed: int) -> EdgeModel:
    """Returns the default fleet's base model, or a fresh one of another architecture."""
    fleet = load_fleet(shipped_path(DEFAULT_FLEET))
    if architecture == fleet.edge.model:
        return base_model(fleet, seed)
    return settled(build_edge_model(fleet_classes(fleet), 0, seed, architecture), seed)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cpu" and not torch.cuda.is_available():
        raise UserError(f"--device {name}: torch finds no GPU here; use cpu")
    return name


def main(
    architecture: Annotated[
        str, typer.Option(help=f"One of {', '.join(EDGE_MODELS)}.")
    ] = DEFAULT_ARCHITECTURE,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")] = "auto",
    full: Full = False,
    seed: Seed = 0,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Measure ways to speed up inference on this machine, each beside the plain one."""
    if architecture not in EDGE_MODELS:
        raise UserError(f"--architecture {architecture}: use one of {', '.join(EDGE_MODELS)}")
    one_thread()
    on = _device(device)
    if on != "cpu":
        torch.use_deterministic_algorithms(False)
    with open_output(json_to) as channel:
        model = model_of(architecture, seed)
        crops = city_crops(model, FRAMES[-1] * OBJECTS)
        bench = Bench(on, model, crops, ALL_ROUNDS if full else ROUNDS, 10 * MOST_S if full else MOST_S)
        with Progress(
            console=channel.console, transient=True, disable=not channel.console.is_terminal
        ) as bars:
            task = bars.add_task("measuring", total=None)
            rows = list(bench.rows(lambda question: bars.update(task, description=question)))
        where = torch.cuda.get_device_name() if on != "cpu" else "one core"
        quick = "" if full else "_quick"
        publish_rows(
            channel,
            f"Inference on {where}: {architecture}",
            rows,
            out / f"bench_inference_{architecture}_{torch.device(on).type}{quick}.csv",
            {"off_by": ".1e", "times": ".2f"},
            architecture=architecture,
            device=where,
            torch=torch.__version__,
            rounds=bench.rounds,
        )


if __name__ == "__main__":
    run(
        main,
        "python experiments/bench_inference.py",
        "python experiments/bench_inference.py --architecture mobilenet_v3_small --json -",
        "python experiments/bench_inference.py --full --device cuda",
    )
