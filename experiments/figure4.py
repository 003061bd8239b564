"""Two streams on three GPUs: even shares beside a plan for accuracy (Figure 4, Table 1).

The paper's example (§3.2), executed by its own rules: two windows of 120 s; inference needs one GPU a
stream, and below that its accuracy falls in proportion; a retraining has the cost and the outcome of Table
1. `uniform` gives each stream half of the GPUs, and half of that to a retraining with the most accurate γ;
when that is done, inference takes what it can use. The paper gives its plan in words (the γ with an
asterisk, video B first, no stream below 40%); it is played here as the thief with those γ alone. Our
schedulers choose freely.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from optimum.executed import execute
from recipe import Beside, accuracy_axis, legend, name_axes, new_figure, percent
from recipe_table import Asked, FigureRecipe

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId, us_to_seconds
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.scheduler import Needs, Scheduler, gamma_word
from ekya.results.report.themes import LIGHT, mix_color

TABLE_1 = (
    {"A": ((0.75, 85.0), (0.70, 65.0)), "B": ((0.90, 80.0), (0.85, 50.0))},
    {"A": ((0.95, 90.0), (0.90, 40.0)), "B": ((0.98, 80.0), (0.90, 70.0))},
)
"""For each window and video: end accuracy and GPU-seconds of Cfg1 and Cfg2."""

START = {"A": 0.65, "B": 0.50}
WINDOW_US = 120_000_000
GPUS_MILLI, QUANTUM_MILLI = 3000, 50
CFG1, CFG2 = (RetrainConfig(epochs, 16, 0, 1, 1.0) for epochs in (2, 1))
PAPER = {"uniform": 0.56, "paper's plan": 0.73}


@dataclass(slots=True)
class Noted:
    """Wraps a scheduler, records its plans, and can restrict it to the example's rules.

    Attributes:
        inner: wrapped scheduler.
        configs: the γ that it is offered; None offers all.
        hands_on: a stream's inference gets the share of its finished retraining, as in the example's uniform
            scheduler.
        turns: each view and the plan for it.
    """

    inner: Scheduler
    configs: tuple[RetrainConfig, ...] | None = None
    hands_on: bool = False
    turns: list[tuple[WindowView, Plan]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the wrapped scheduler."""
        return self.inner.name

    @property
    def needs(self) -> Needs:
        """Needs of the wrapped scheduler."""
        return self.inner.needs

    def plan(self, view: WindowView) -> Plan:
        """Returns the plan and records it."""
        offered = tuple(
            replace(stream, retrain_options=tuple(one for one in stream.retrain_options if self._offers(one)))
            for stream in view.streams
        )
        plan = self.inner.plan(replace(view, streams=offered))
        if self.hands_on:
            given = tuple(
                _handed_on(one, stream, view.capacity_milli // len(view.streams))
                for one, stream in zip(plan.phases[0].assignments, view.streams, strict=True)
            )
            plan = replace(plan, phases=(Phase(given),))
        self.turns.append((view, plan))
        return plan

    def _offers(self, option: RetrainOption) -> bool:
        return self.configs is None or option.config in self.configs


def _handed_on(given: Assignment, stream: StreamView, even_milli: int) -> Assignment:
    """Gives a stream's whole share to its inference, with every frame analysed, once nothing is retrained."""
    if given.retrain is not None:
        return given
    share_milli = min(1000, even_milli)
    fitting = [one for one in stream.inference_options if one.share_needed_milli <= share_milli]
    best = max(fitting, key=lambda one: one.relative_accuracy)
    return replace(given, retrain_share_milli=0, inference_share_milli=share_milli, inference=best.config)


def view_of(window: int, accuracy: Mapping[str, float]) -> WindowView:
    """Returns a window of the example.

    λ are fractions of analysed frames: a fraction p needs p of a GPU and has p of the accuracy.
    """
    lambdas = tuple(
        InferenceOption(InferenceConfig(21 - part, 224), part / 20, part * 50) for part in range(20, 0, -1)
    )
    streams = tuple(
        StreamView(
            StreamId(video),
            accuracy[video],
            tuple(
                RetrainOption(config, after, gpu_s)
                for config, (after, gpu_s) in zip((CFG1, CFG2), TABLE_1[window][video], strict=True)
            ),
            lambdas,
        )
        for video in START
    )
    return WindowView(0, WINDOW_US, GPUS_MILLI, QUANTUM_MILLI, QUANTUM_MILLI, 0.4, streams, LINEAR)


@dataclass(frozen=True, slots=True)
class Span:
    """State of one video for a period.

    Attributes:
        start_s, end_s: from the example's beginning.
        gamma: retraining that ran, by its name in Table 1; empty if none.
    """

    plan: str
    video: str
    start_s: float
    end_s: float
    accuracy: float
    inference_gpus: float
    retraining_gpus: float
    gamma: str


def play(name: str, scheduler: Noted) -> list[Span]:
    """Plays both windows, planned again at every completion."""
    accuracy, spans = dict(START), []
    for window in range(len(TABLE_1)):
        scheduler.turns.clear()
        execute(view_of(window, accuracy), scheduler)
        ends = [view.now_us for view, _ in scheduler.turns[1:]] + [WINDOW_US]
        for (view, plan), end_us in zip(scheduler.turns, ends, strict=True):
            phase = plan.phases[0]
            values = dict(evaluate_phases(replace(view, window_end_us=end_us), (phase,)).per_stream)
            for given in phase.assignments:
                runs = given.retrain is not None and given.retrain_share_milli > 0
                spans.append(
                    Span(
                        plan=name,
                        video=given.stream,
                        start_s=us_to_seconds(window * WINDOW_US + view.now_us),
                        end_s=us_to_seconds(window * WINDOW_US + end_us),
                        accuracy=values[given.stream],
                        inference_gpus=given.inference_share_milli / 1000,
                        retraining_gpus=given.retrain_share_milli / 1000 if runs else 0.0,
                        gamma="" if not runs else "Cfg1" if given.retrain == CFG1 else "Cfg2",
                    )
                )
            accuracy = {str(stream.stream): stream.accuracy for stream in view.streams}
            for stream, _ in evaluate_phases(view, (phase,)).completions_us:
                (option,) = _running(view, phase, stream)
                accuracy[stream] = max(accuracy[stream], option.accuracy_after)
    return spans


def _running(view: WindowView, phase: Phase, name: StreamId) -> list[RetrainOption]:
    stream = next(one for one in view.streams if one.stream == name)
    given = next(one for one in phase.assignments if one.stream == name)
    known = (stream.running.option,) if stream.running else stream.retrain_options
    return [option for option in known if option.config == given.retrain]


def mean_accuracy(spans: Sequence[Span]) -> float:
    """Returns the mean over both videos and the whole time."""
    whole_s = us_to_seconds(WINDOW_US) * len(TABLE_1) * len(START)
    return sum(span.accuracy * (span.end_s - span.start_s) for span in spans) / whole_s


PLANS: Mapping[str, Callable[[], Noted]] = {
    "uniform": lambda: Noted(make_scheduler(f"uniform:gamma={gamma_word(CFG1)}"), hands_on=True),
    "paper's plan": lambda: Noted(make_scheduler("thief"), configs=(CFG2,)),
    "thief": lambda: Noted(make_scheduler("thief")),
    "exact": lambda: Noted(make_scheduler("exact")),
    "serial": lambda: Noted(make_scheduler("serial")),
    "ekya": lambda: Noted(make_scheduler("ekya")),
}
"""Plans of the example; the names of ours are those of the schedulers."""


def play_plans(_: Asked) -> Iterator[Span]:
    """Plays every plan."""
    for name, made in PLANS.items():
        yield from play(name, made())


def by_plan(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Returns the spans of each plan."""
    return {name: [span for span in spans if span.plan == name] for name in PLANS}


def beside_plans(spans: Sequence[Span]) -> Iterator[Beside]:
    """Yields the mean accuracy of each plan, those of the paper first."""
    plans = by_plan(spans)
    for name in (*PAPER, *(one for one in plans if one not in PAPER)):
        paper = f"{PAPER[name]:.0%}" if name in PAPER else ""
        yield Beside(f"{name}, mean accuracy", paper, {"example": percent(mean_accuracy(plans[name]))})


def draw_plans(spans: Sequence[Span]) -> Figure:
    """Draws shares and accuracy of three plans."""
    plans, shown = by_plan(spans), ("uniform", "paper's plan", "ekya")
    figure, axes = new_figure(len(shown), 2, 2.3, sharex=True, sharey="row")
    for column, name in enumerate(shown):
        mean = mean_accuracy(plans[name])
        _draw_shares(axes[0][column], plans[name])
        _draw_accuracy(axes[1][column], plans[name], mean)
        told = f"{percent(mean)}, paper {PAPER[name]:.0%}" if name in PAPER else percent(mean)
        name_axes(axes[0][column], f"{name}: {told}", size=10)
        name_axes(axes[1][column], x="seconds")
    name_axes(axes[0][0], y="GPUs", size=9.5)
    axes[0][0].set_yticks(range(4))
    accuracy_axis(axes[1][0], "inference accuracy")
    legend(figure, axes[0][0])
    return figure


def _draw_shares(axes: Axes, spans: Sequence[Span]) -> None:
    starts = sorted({span.start_s for span in spans})
    parts = [(video, job) for video in START for job in ("inference", "retraining")]
    colors = (LIGHT.streams[0], LIGHT.streams[0], LIGHT.streams[1], LIGHT.streams[1])
    bottom = [0.0] * len(starts)
    for (video, job), color in zip(parts, colors, strict=True):
        own = [span for span in spans if span.video == video]
        heights = [span.inference_gpus if job == "inference" else span.retraining_gpus for span in own]
        axes.bar(
            starts,
            heights,
            width=[span.end_s - span.start_s for span in own],
            bottom=bottom,
            align="edge",
            color=mix_color(color, LIGHT.page, 0.35 if job == "inference" else 0.9),
            edgecolor=LIGHT.page,
            linewidth=0.8,
            label=f"video {video}, {job}",
        )
        if job == "retraining":
            for span, below in zip(own, bottom, strict=True):
                if span.gamma and span.end_s - span.start_s > 18:
                    at = ((span.start_s + span.end_s) / 2, below + span.retraining_gpus / 2)
                    axes.annotate(span.gamma, at, ha="center", va="center", fontsize=7.5, color=LIGHT.page)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    axes.axvline(us_to_seconds(WINDOW_US), color=LIGHT.quiet, linewidth=0.8)


def _draw_accuracy(axes: Axes, spans: Sequence[Span], mean: float) -> None:
    for video, color in zip(START, LIGHT.streams, strict=False):
        own = [span for span in spans if span.video == video]
        times = [own[0].start_s, *(span.end_s for span in own)]
        axes.stairs([span.accuracy for span in own], times, baseline=None, color=color, linewidth=1.9)
    axes.axhline(0.4, color=LIGHT.quiet, linewidth=0.9, linestyle=":")
    axes.annotate("a_MIN", (2, 0.405), fontsize=7.5, color=LIGHT.quiet)
    axes.axhline(mean, color=LIGHT.ink, linewidth=1.0, linestyle=(0, (2, 2)))
    axes.annotate("mean", (2, mean + 0.01), fontsize=8, color=LIGHT.ink)
    axes.axvline(us_to_seconds(WINDOW_US), color=LIGHT.quiet, linewidth=0.8)
    axes.set(ylim=(0.3, 1.0), xlim=(0, 240), xticks=range(0, 241, 60))


FIGURE4 = FigureRecipe(
    "Two streams on three GPUs",
    "Figure 4: two streams, three GPUs, two windows of 120 s (Table 1)",
    play_plans,
    beside_plans,
    "The paper's shares are in a picture only, so its plan is played as the thief with the γ of "
    "its asterisks; ours retrain one video at a time on a whole GPU while inference keeps the "
    "other two.",
    draw_plans,
)
