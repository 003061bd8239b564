"""The paper's setting on Cityscapes, for those who have it: Table 3 and Figures 6 to 8, beside its numbers.

    python experiments/paper.py --cityscapes /data/cityscapes --out paper

Ten cities with the most pictures are cameras, windows have 200 s, Γ has 18 γ. The cities for pretraining
customise the edge model, and the next two of the others give the uniform baselines' γ: both are held out, as
in the paper (§6.1). Every γ is
really trained once per camera and window; Figures 6 to 8 are played from these records, as the paper's larger
ones. Then each scheduler runs by itself with real training on virtual time, on 1, 2, 4 and 8 GPUs. What is
finished is kept in the folder, and the same command goes on.

Labels are those that came with the data. A picture stands for 1.8 s, the time to the next one: the paper
joins its pictures into videos as well, and does not say at which rate.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import baseline_figures as baseline
import sweep_figures as sweep
import typer
from matplotlib.figure import Figure
from played import (
    EKYA,
    NO_RETRAIN,
    PAPER,
    PAPER_BASELINES,
    RULES,
    Data,
    Who,
    draw_panels,
    draw_schedulers,
    mark_gpus,
    ours,
    paper_baselines,
)
from recipe import Beside, Channel, Finding, Seed, channel, percent, points, run
from recipe_table import Row

from ekya.cli.command import Output
from ekya.cli.options import parse_gpu_counts
from ekya.cli.prepare import plan, show_examination
from ekya.cli.profile import ProfileConfig, profile
from ekya.cli.train import EdgeTrainConfig, train_
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import load_fleet, write_fleet
from ekya.core.errors import UserError
from ekya.core.trace import Trace
from ekya.pipeline.costs import fitted_by_card, load_card
from ekya.results.comparison import compare_schedulers
from ekya.results.storage.run_folder import plain_name
from ekya.results.storage.trace_file import read_trace
from ekya.simulation.emulated.play_once import play_once
from ekya.system.files import user_errors

HELD_OUT = 2
"""Cities that are never played (§6.1)."""

SETTING: Mapping[str, object] = {
    "retraining": {
        "epochs": [5, 15, 30],
        "batch_sizes": [16],
        "head_widths": [0],
        "trainable_blocks": [0, 2],
        "data_fractions": [0.25, 0.5, 1.0],
    },
    "preparation": {"share_milli": 1000, "fraction": 0.15},
    "min_accuracy": 0.4,
}
"""18 γ (§6.3); the rest as in ``datasets/synthetic_city/ten_cameras.yaml``."""

LABELS_PER_WINDOW = 400
ONLY_DRAWN = "only drawn"
PAPER_ACCURACY = {8.0: percent(sweep.PAPER_ACCURACY)}
"""Accuracy of the paper's Ekya by GPUs, ten streams, where its text has a number (§6.5)."""

WHY = (
    "One seed. The paper's V100 is a core, or the card that --card names; it does not say at which rate its "
    "pictures are shown, nor what share its inference needs."
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is played.

    Attributes:
        fleet: cameras and held-out cities, in this order.
        cameras: number of the first ones, which are played.
        held_out: fleet of the others.
    """

    fleet: FleetConfig
    cameras: int

    @property
    def held_out(self) -> FleetConfig:
        return self.fleet.model_copy(update={"streams": self.fleet.streams[self.cameras :]})

    def players(self, trace: Trace) -> tuple[Data, dict[str, Who]]:
        """Returns the recorded cameras, and every scheduler that a real run could have, by name."""
        names = [stream.id for stream in self.fleet.streams]
        of_place = {names.index(stream.stream): stream for stream in trace.streams}
        ordered = [of_place[place] for place in sorted(of_place)]
        data = Data(
            "cityscapes",
            (replace(trace, streams=tuple(ordered[: self.cameras])),),
            replace(trace, streams=tuple(ordered[self.cameras :])),
        )
        uniform = paper_baselines(data)
        gamma = uniform[baseline.UNIFORM].spec.partition(":gamma=")[2]
        return data, {
            **ours(data),
            **uniform,
            **{name: Who(name) for name in ("exact", "serial", NO_RETRAIN, *RULES)},
            baseline.FIXED_RES: Who(f"{baseline.FIXED_RES}:inference=500"),
            baseline.FIXED_CONFIG: Who(f"{baseline.FIXED_CONFIG}:inference=500:gamma={gamma}"),
        }


def prepare_setting(root: Path, out: Path, cameras: int, window_s: float, told: Output) -> Setting:
    """Prepares the data where that is not done, and returns the paper's setting on them.

    Raises:
        UserError: there are not enough cities.
    """
    file = out / "cityscapes.yaml"
    preparation = plan("cityscapes", root, file, "", None, None, told)
    with show_examination(preparation, told, "the same command goes on") as progress:
        findings = preparation.prepare_once(progress, asked=False)
    for line in preparation.describe_left_out(findings):
        told.print_text(line)
    fleet = load_fleet(file, {**SETTING, "window_s": window_s})
    by_name = {stream.id: stream for stream in fleet.streams}
    # Of one window nothing can be retrained.
    long_enough = [name for name in by_name if findings[name].duration_s > window_s]
    order = sorted(long_enough, key=lambda name: -findings[name].frames)[: cameras + HELD_OUT]
    if len(order) < cameras + HELD_OUT:
        raise UserError(
            f"--streams {cameras}: with the {HELD_OUT} that are held out it takes {cameras + HELD_OUT} "
            f"cities of more than {window_s:g} s, and {root} has {len(order)}; ask for fewer, or for a "
            "shorter --window"
        )
    golden = fleet.golden.model_copy(update={"labels_per_window": LABELS_PER_WINDOW})
    streams = tuple(by_name[name] for name in order)
    return Setting(fleet.model_copy(update={"streams": streams, "golden": golden}), cameras)


def train_base(setting: Setting, weights: Path | None, out: Path, told: Output) -> Setting:
    """Customises the edge model on the cities for pretraining, measured on the held-out ones."""
    base, fleet = out / "base.safetensors", setting.fleet
    if not base.exists():
        file = out / "held_out.yaml"
        write_fleet(file, setting.held_out)
        train_.run(
            EdgeTrainConfig(
                fleet=file,
                out=base,
                weights=weights or fleet.edge.weights,
                model=fleet.edge.model,
            ),
            told,
        )
    edge = fleet.edge.model_copy(update={"weights": base})
    return replace(setting, fleet=fleet.model_copy(update={"edge": edge}))


def record(
    setting: Setting, out: Path, seed: int, families: int | None, card: Path | None, told: Output
) -> Trace:
    """Trains every γ on every camera and on the held-out cities, or goes on with that."""
    file, trace = out / "paper.yaml", out / "paper.parquet"
    write_fleet(file, setting.fleet)
    profile.run(
        ProfileConfig(fleet=file, out=trace, seed=seed, families=families, card=card, resume=trace.exists()),
        told,
    )
    return read_trace(trace)


def play_records(data: Data, seed: int) -> Iterator[Finding]:
    """Yields Figure 6 with Table 3, Figure 7 and Figure 8, all from the records."""
    for name, title, rows, beside, draw in (
        (
            "paper_figure6",
            "Figure 6, Table 3: accuracy by the number of streams, and capacity",
            sweep.play_by_streams(data, False, seed),
            sweep.beside_by_streams,
            sweep.draw_by_streams,
        ),
        (
            "paper_figure7",
            "Figure 7: accuracy by GPUs",
            sweep.play_by_gpus(data, False, seed),
            sweep.beside_by_gpus,
            sweep.draw_by_gpus,
        ),
        (
            "paper_figure8",
            "Figure 8: Ekya with one half taken out",
            baseline.play_halves(data, False, seed),
            baseline.beside_halves,
            baseline.draw_halves,
        ),
    ):
        found, names = list(rows), [data.name]
        yield Finding(name, title, found, list(beside(found, names)), WHY, draw(found, names))


def run_schedulers(
    setting: Setting,
    players: Mapping[str, Who],
    gpus: Sequence[float],
    seed: int,
    card: Path | None,
    out: Path,
    told: Channel,
) -> Iterator[Row]:
    """Runs every scheduler on every number of GPUs, with real training on virtual time."""
    costs = load_card(card)
    cameras = setting.fleet.model_copy(update={"streams": setting.fleet.streams[: setting.cameras]})

    for count in gpus:
        fleet, _ = fitted_by_card(cameras.model_copy(update={"gpus": count}), overload=True, card=costs)

        def play(name: str, seed: int, fleet: FleetConfig = fleet, count: float = count) -> Path:
            who = players[name]
            own = fleet.model_copy(update={"checkpoints": who.checkpoints}).with_preset(who.spec)
            told.console.print(f"{name} on {count:g} GPU{'' if count == 1 else 's'}", highlight=False)
            folder = out / "runs" / f"{count:g}"
            return play_once(folder, plain_name(f"{name}-seed{seed}"), own, who.spec, seed, costs)

        runs = compare_schedulers(fleet, list(players), (seed,), play)["runs"]
        reached = {one["scheduler"]: float(one["mean_accuracy"]) for one in runs}
        for name, accuracy in reached.items():
            yield {
                "gpus": count,
                "streams": setting.cameras,
                "scheduler": name,
                "accuracy": accuracy,
                "ekya_above": reached[EKYA] - accuracy,
            }


def beside_runs(rows: Sequence[Row]) -> Iterator[Beside]:
    """Yields the accuracy of each scheduler on each number of GPUs."""
    for row in rows:
        gpus, name = row["gpus"], row["scheduler"]
        paper = PAPER_ACCURACY.get(gpus, ONLY_DRAWN) if name == PAPER else ""
        paper = ONLY_DRAWN if name in PAPER_BASELINES else paper
        above = "" if name == EKYA else f", {EKYA} {points(row['ekya_above'])}"
        what = f"{gpus:g} GPU{'' if gpus == 1 else 's'}: accuracy of {name}"
        yield Beside(what, paper, {"cityscapes": f"{percent(row['accuracy'])}{above}"}, below=name == PAPER)


def draw_runs(rows: Sequence[Row]) -> Figure:
    """Draws schedulers over GPUs."""
    figure = draw_panels(
        [[("cityscapes", rows)]],
        lambda panel, own: draw_schedulers(panel, own, "gpus"),
        "GPUs for all streams",
    )
    mark_gpus(figure.axes[0], sorted({row["gpus"] for row in rows}))
    return figure


def main(
    cityscapes: Annotated[Path, typer.Option(metavar="DIR", help="leftImg8bit and gtFine, unpacked.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Of all that is made.")] = Path("paper"),
    streams: Annotated[int, typer.Option(min=1, help="Cameras; two more cities are held out.")] = 10,
    window: Annotated[float, typer.Option(min=1, help="Seconds.")] = 200.0,
    gpus: Annotated[str, typer.Option(metavar="N,...", help="Of the runs with real training.")] = "1,2,4,8",
    schedulers: Annotated[str, typer.Option(metavar="NAME,...", help="Of these runs; default: all.")] = "",
    weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="ResNet18 to begin with; default: the rendered city's."),
    ] = None,
    families: Annotated[
        int | None, typer.Option(min=1, help="Of γ that are recorded, the cheapest first; default: all.")
    ] = None,
    card: Annotated[Path | None, typer.Option(help="Cost card, as of ekya run; default: a core.")] = None,
    seed: Seed = 0,
) -> None:
    """Play the paper's setting on Cityscapes, and write its Table 3 and Figures 6 to 8 with our numbers."""
    # Paths of the fleet files that are written begin there.
    counts, out = parse_gpu_counts(gpus), out.resolve()
    with user_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with channel(None, out) as told:
        output = Output(told.console, None)
        setting = prepare_setting(cityscapes, out, streams, window, output)
        setting = train_base(setting, weights, out, output)
        data, players = setting.players(record(setting, out, seed, families, card, output))
        chosen = [name for name in schedulers.split(",") if name] or list(players)
        if unknown := next((name for name in (*chosen, EKYA) if name not in players), None):
            raise UserError(f"--schedulers: there is no {unknown!r}; choose from {', '.join(players)}")
        for found in play_records(data, seed):
            told.publish(found)
        of_runs = {name: players[name] for name in dict.fromkeys((EKYA, *chosen))}
        rows = list(run_schedulers(setting, of_runs, counts, seed, card, out, told))
        title = f"{streams} streams, windows of {window:g} s, real training on virtual time"
        told.publish(Finding("paper_runs", title, rows, list(beside_runs(rows)), WHY, draw_runs(rows)))


if __name__ == "__main__":
    run(
        main,
        "python experiments/paper.py --cityscapes /data/cityscapes",
        "python experiments/paper.py --cityscapes /data/cityscapes --weights resnet18-f37072fd.pth",
    )
