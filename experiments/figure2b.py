"""Gain of continuous retraining, and whether a larger model would need it (Figure 2b).

    python experiments/figure2b.py
    ekya edge train datasets/synthetic_city/holdout.yaml --model resnet101 --out runs/resnet101.safetensors
    python experiments/figure2b.py --full --resnet101 runs/resnet101.safetensors

Streams of the synthetic city are cut into ten windows, and four models are tested on every third frame of
the last five: one trained on other cameras; that one trained once on a sample of the first five windows;
that one retrained after each window on a sample of it; and a ResNet101 trained as the second. Labels are the
true ones; objects that any model was trained on are excluded. The ResNet101 takes a quarter of an hour to
train on one core, so it is left out by default.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import typer
from city_windows import CityFleet, one_thread, read_fleet, sample, windows_of
from matplotlib.figure import Figure
from recipe import (
    RESULTS,
    Beside,
    Finding,
    Full,
    Json,
    Out,
    Seed,
    accuracy_axis,
    channel,
    legend,
    new_figure,
    percent,
    points,
    run,
)

from ekya.core.configs import RetrainConfig
from ekya.models.edge.checkpoints import load_model
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.edge.predictor import Predictor, accuracy
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops, concatenate, no_crops
from ekya.models.training.trainer import Retraining, RetrainingData
from ekya.results.report.themes import LIGHT

ROOT = Path(__file__).resolve().parents[1]
WINDOWS, FIRST = 10, 5
EVERY_FRAME = 3
QUICK_STREAM = "cam-2"
"""The stream that drifts twice, once of it in the last five windows."""

OTHERS, ONCE, CONTINUOUS, LARGE = (
    "other cameras",
    "first five windows",
    "continuously",
    "ResNet101, first five",
)
STYLES = {
    OTHERS: (LIGHT.streams[7], "x:"),
    ONCE: (LIGHT.streams[1], "s--"),
    CONTINUOUS: (LIGHT.streams[0], "o-"),
    LARGE: (LIGHT.streams[3], "^--"),
}


@dataclass(frozen=True, slots=True)
class Base:
    """Start models: the common ResNet18, and a ResNet101 or None."""

    small: EdgeModel
    large: EdgeModel | None


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a retraining: γ, labels a window and the seed."""

    config: RetrainConfig
    labels: int
    seed: int


def retrain(
    start: EdgeModel, labels: LabelledCrops, memory: ExemplarMemory, settings: Settings
) -> tuple[EdgeModel, ExemplarMemory]:
    """Retrains on labelled objects; returns the model and the new exemplar memory."""
    nothing = no_crops(labels.side)
    data = RetrainingData(labels, nothing, start.classes, memory=memory, seed=settings.seed)
    retraining = Retraining(start, settings.config, data)
    retraining.prepare_training()
    while not retraining.done:
        retraining.run_epoch()
    model = retraining.model()
    return model, memory.update_exemplars(labels)


def follow(
    stream: str, windows: Sequence[LabelledCrops], base: Base, settings: Settings, step: Callable[[], None]
) -> list[dict[str, Any]]:
    """Measures all models on the last windows of a stream."""
    samples = [sample(window, settings.labels, settings.seed + place) for place, window in enumerate(windows)]
    early = concatenate(samples[:FIRST])
    models: dict[str, EdgeModel] = {OTHERS: base.small}
    models[ONCE] = retrain(base.small, early, ExemplarMemory(), settings)[0]
    step()
    if base.large is not None:
        models[LARGE] = retrain(base.large, early, ExemplarMemory(), settings)[0]
        step()
    latest, memory = base.small, ExemplarMemory()
    rows = []
    for index, window in enumerate(windows):
        if index >= FIRST:
            models[CONTINUOUS] = latest
            # The window's own sample is not excluded: no model has been trained on it yet.
            labelled = np.concatenate([part.tracks for part in samples[:index]])
            asked = window.select_rows(np.flatnonzero(~np.isin(window.tracks, labelled)))
            rows += [
                {
                    "stream": stream,
                    "window": index + 1,
                    "trained on": name,
                    "objects": len(asked),
                    "accuracy": accuracy(Predictor(model), asked),
                }
                for name, model in models.items()
            ]
        latest, memory = retrain(latest, samples[index], memory, settings)
        step()
    return rows


def slower(small: EdgeModel, crops: LabelledCrops) -> float:
    """Returns the inference time of a ResNet101 over that of ``small``, on one thread, with fresh weights."""
    large = build_edge_model(small.classes, small.head_width, seed=0, architecture="resnet101")
    took = []
    for model in (small, large):
        predictor = Predictor(model)
        predictor.predict(crops.crops[:16], crops.side)
        began = time.process_time()
        predictor.predict(crops.crops[:128], crops.side)
        took.append(time.process_time() - began)
    return took[1] / took[0]


def by_model(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the mean accuracy over streams and windows."""
    names = dict.fromkeys(row["trained on"] for row in rows)
    return {name: fmean(row["accuracy"] for row in rows if row["trained on"] == name) for name in names}


def most(rows: Sequence[Mapping[str, Any]], other: str) -> float:
    """Returns the largest lead of continuous retraining in any window of any stream."""
    reached = {(row["stream"], row["window"], row["trained on"]): row["accuracy"] for row in rows}
    places = {(stream, window) for stream, window, _ in reached}
    return max(reached[(*place, CONTINUOUS)] - reached[(*place, other)] for place in places)


def found(rows: list[dict[str, Any]], times: float) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    means = by_model(rows)
    data = "city"
    beside = [
        Beside(
            "continuous retraining above the others, in a window",
            "up to 22 points",
            {data: f"up to {points(max(most(rows, OTHERS), most(rows, ONCE)))}"},
        ),
        *(Beside(f"mean accuracy: {name}", "", {data: percent(means[name])}) for name in means),
    ]
    large = points(means[LARGE] - means[CONTINUOUS]) if LARGE in means else "not trained"
    beside += [
        Beside("ResNet101 trained once, against ResNet18 retrained", "nearly as good", {data: large}),
        Beside("time of ResNet101 over that of ResNet18", "13x", {data: f"{times:.1f}x"}),
    ]
    return Finding(
        name="figure2b",
        title="Figure 2b: accuracy in the last five of ten windows, by what a model was trained on",
        rows=rows,
        beside=beside,
        why="The city's drift is scripted and harder than Cityscapes'; crops of 32 pixels cost ResNet101 "
        "fewer times what they cost ResNet18, and it starts from the same two cameras, not from "
        "millions of pictures.",
        figure=_drawn(rows),
    )


def _drawn(rows: Sequence[Mapping[str, Any]]) -> Figure:
    streams = list(dict.fromkeys(row["stream"] for row in rows))
    figure, axes = new_figure(len(streams), 1, 3.0, sharey=True)
    for panel, stream in zip(axes[0], streams, strict=True):
        for name, (color, style) in STYLES.items():
            own = [row for row in rows if (row["stream"], row["trained on"]) == (stream, name)]
            if own:
                line = [[row[key] for row in own] for key in ("window", "accuracy")]
                panel.plot(*line, style, color=color, markersize=5, label=name)
        panel.set_title(stream, fontsize=10, loc="left", color=LIGHT.ink)
        panel.set_xlabel("window", fontsize=9, color=LIGHT.ink)
        panel.set_xticks(range(FIRST + 1, WINDOWS + 1))
        panel.set_ylim(0, 1.02)
    accuracy_axis(axes[0][0])
    legend(figure, axes[0][0])
    return figure


def main(
    full: Full = False,
    resnet101: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A base ResNet101 of `ekya edge train`; left out where none is named."
        ),
    ] = None,
    fleet_file: Annotated[Path, typer.Option("--fleet", metavar="FILE", help="Of city streams.")] = ROOT
    / "datasets/synthetic_city/fleet.yaml",
    seed: Seed = 0,
    json_to: Json = None,
    out: Out = RESULTS,
) -> None:
    """Compare training on other cameras, once, continuously, and a larger model: Figure 2b."""
    with channel(json_to, out) as tell:
        one_thread()
        fleet = read_fleet(fleet_file)
        base = Base(
            load_model(ROOT / "golden_models/synthetic_city_resnet18_base.safetensors"),
            load_model(resnet101) if resnet101 else None,
        )
        settings = Settings(RetrainConfig(8 if full else 5, 16, 0, 5 if full else 2, 1.0), 48, seed)
        streams = [one for one in fleet.streams if full or one[0] == QUICK_STREAM]
        rows: list[dict[str, Any]] = []
        with tell.steps("Figure 2b", len(streams) * (WINDOWS + 1 + (base.large is not None))) as step:
            for stream, spec in streams:
                windows = windows_of(spec, fleet.classes, _window_s(fleet), WINDOWS, EVERY_FRAME)
                rows += follow(stream, windows, base, settings, step)
        tell.publish(found(rows, slower(base.small, windows[0])))


def _window_s(fleet: CityFleet) -> float:
    """Returns a tenth of the fleet's total time."""
    return fleet.window_s * fleet.windows / WINDOWS


if __name__ == "__main__":
    run(
        main,
        "python experiments/figure2b.py",
        "python experiments/figure2b.py --full --resnet101 runs/resnet101_base.safetensors",
    )
