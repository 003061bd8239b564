"""The loop fed by hand, with a scripted planner."""

from dataclasses import dataclass, field, replace

from ekya.control.loop import first_state
from ekya.control.loop_state import LoopState
from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.control.step import StepResult, step
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.profile import Family, FamilyCost
from ekya.core.stream_faults import Faults, Status
from ekya.core.units import JobId, StreamId
from ekya.core.view import InferenceOption, WindowView
from ekya.planning.schedulers.scheduler import Needs

A, B = StreamId("a"), StreamId("b")
SHORT = RetrainConfig(epochs=4, batch_size=16, head_width=0, trainable_blocks=0, data_fraction=0.5)
LONG = RetrainConfig(epochs=10, batch_size=16, head_width=0, trainable_blocks=1, data_fraction=1.0)
EVERY, SECOND = InferenceConfig(1, 32), InferenceConfig(2, 32)
LAMBDAS = (InferenceOption(EVERY, 1.0, 300), InferenceOption(SECOND, 0.8, 150))
INFERENCE, RETRAINING = ev.Role.INFERENCE, ev.Role.RETRAINING

FAULTS = {
    Status.SERVING: Faults(),
    Status.RESTARTING: Faults(down="killed"),
    Status.PAUSED: Faults(paused=True),
    Status.LOST: Faults(lost="no signal"),
    Status.ENDED: Faults(ended=True),
    Status.SET_ASIDE: Faults(set_aside="killed too often"),
}
"""Faults of a stream in each status."""

S = 1_000_000

OPTIONS = LoopOptions(
    window_us=100 * S,
    windows=3,
    capacity_milli=2000,
    quantum_milli=100,
    steal_milli=100,
    min_accuracy=0.0,
    preparation_share_milli=500,
    preparation_us=15 * S,
    checkpoint_delay_us=S // 2,
    retrain_configs=(SHORT, LONG),
    inference_configs=(EVERY, SECOND),
    family_costs=(FamilyCost(Family(0, 0, 16), 0.01, 0.02), FamilyCost(Family(1, 0, 16), 0.01, 0.05)),
)

NEEDS = Needs(labels=True, inference_profile=True, micro_profile=False, fixed_gamma=True, fixed_shares=True)


@dataclass
class Wish:
    """The planner's decision for a stream; a γ that is not offered is not given."""

    inference_milli: int = 300
    inference: InferenceConfig = EVERY
    retrain: RetrainConfig | None = None
    retrain_milli: int = 0


@dataclass
class Hand:
    """Feeds batches to the loop, and keeps its state and the planner's views."""

    wishes: dict[StreamId, Wish] = field(default_factory=lambda: {A: Wish(), B: Wish()})
    options: LoopOptions = OPTIONS
    needs: Needs = NEEDS
    state: LoopState = field(default_factory=first_state)
    views: list[WindowView] = field(default_factory=list)

    def plan(self, view: WindowView) -> Plan:
        self.views.append(view)
        assignments = []
        for stream in view.streams:
            wish = self.wishes[stream.stream]
            offered = [option.config for option in stream.retrain_options]
            running = stream.running.option.config if stream.running else None
            gamma = running or (wish.retrain if wish.retrain in offered else None)
            assignments.append(
                Assignment(
                    stream.stream,
                    gamma,
                    wish.retrain_milli if gamma else 0,
                    wish.inference,
                    wish.inference_milli,
                    False,
                    "so",
                )
            )
        return Plan((Phase(tuple(assignments)),), 0.5)

    def give(self, now_us: int, *events: ev.Event) -> StepResult:
        """Takes one step. Asserts that the planner is called once if there is a plan, and else not at all."""
        asked = len(self.views)
        turn = step(self.state, Batch(now_us, events), self.options, self.needs, self.plan)
        assert len(self.views) - asked == (turn.plan is not None)
        self.state = turn.state
        return turn

    def open_window(self, window: int) -> StepResult:
        """Closes the window before, and opens this one, which lasts 100 s."""
        at_us = window * 100 * S
        closed, opened = ev.WindowClosed(at_us, window - 1), ev.WindowOpened(at_us, window, at_us + 100 * S)
        return self.give(at_us, closed, opened)

    def end_preparation(self, at_s: int, window: int = 1, round: int = 0) -> StepResult:
        """Ends a preparation."""
        return self.give(at_s * S, ev.PreparationEnded(at_s * S, window, round))

    def prepare(self) -> StepResult:
        """Prepares window 1: both streams are labelled at 105 s, and it ends at 110 s."""
        self.give(105 * S, labels(105 * S, A), labels(105 * S, B))
        return self.end_preparation(110)

    def stream(self, stream=A):
        return self.state.fleet.stream(stream)


def started(**changes) -> Hand:
    """Streams ``a`` and ``b`` serve in window 0."""
    hand = Hand(**changes)
    hand.give(
        0,
        ev.StreamAdded(0, A, LAMBDAS),
        ev.StreamAdded(0, B, LAMBDAS),
        ev.WindowOpened(0, 0, hand.options.window_us),
    )
    return hand


def only(kind, turn):
    """Returns the commands of a kind that follow from a step."""
    return [command for command in turn.commands if isinstance(command, kind)]


def labels(t_us, stream, window=1, accuracy=0.5, crops=100):
    return ev.LabelsReady(t_us, stream, window, crops, 400, accuracy, False, 0.5)


def opened_1(**changes) -> Hand:
    """Window 1 has just opened and is being prepared."""
    hand = started(**changes)
    hand.open_window(1)
    return hand


def prepared(**changes) -> Hand:
    """Window 1 is prepared, and nothing is retrained."""
    hand = opened_1(**changes)
    hand.prepare()
    return hand


def retraining(gamma=LONG, share_milli=400, accuracy=0.5, **changes) -> Hand:
    """Job 1 runs on stream ``a`` in window 1, since 110 s."""
    hand = opened_1(**changes)
    hand.wishes[A] = Wish(retrain=gamma, retrain_milli=share_milli)
    hand.give(105 * S, labels(105 * S, A, accuracy=accuracy), labels(105 * S, B))
    hand.end_preparation(110)
    assert hand.stream().job is not None
    return hand


def progress(t_us, epoch, accuracy):
    """An epoch of job 1; each takes one GPU-second."""
    return ev.RetrainProgress(t_us, A, JobId(1), epoch, accuracy, float(epoch))


def promised(hand: Hand, accuracy: float) -> None:
    """Sets the accuracy that the running job's profile promised."""
    stream = hand.stream()
    job = replace(stream.job, promised_accuracy=accuracy, expected_accuracy=accuracy)
    hand.state = replace(hand.state, fleet=hand.state.fleet.with_stream(replace(stream, job=job)))
