"""Retrainings on capacity that a plan leaves, of students for which the golden detector answers.

No λ of the golden detector becomes more accurate by a retraining, so a plan of a window begins none for them.
Where capacity is left over the student learns meanwhile, and once it is worth more at its cost than the
golden detector, the next plan takes it in its place.
"""

from dataclasses import replace

from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.units import FULL_GPU_MILLI, US_PER_S
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.objective import evaluate_phases

LEAST_GAIN = 0.01
"""Gain in accuracy from which a student is retrained on spare capacity."""


def retrain_on_spare(view: WindowView, plan: Plan) -> Plan:
    """Returns the plan with retrainings, in its first phase, on what that leaves of the capacity.

    One that runs already goes on first. The others follow by gain per GPU-second, each on a whole GPU if that
    much is left, and only if it ends within the window.
    """
    first = plan.phases[0]
    used = sum(one.retrain_share_milli + one.inference_share_milli for one in first.assignments)
    left_milli, given = view.capacity_milli - used, list(first.assignments)
    for place in sorted(range(len(given)), key=lambda place: _rank(view.streams[place])):
        stream = view.streams[place]
        share = min(left_milli, FULL_GPU_MILLI) // view.quantum_milli * view.quantum_milli
        option = _option(view, stream, given[place], share)
        if option is not None:
            left_milli -= share
            given[place] = replace(
                given[place], retrain=option.config, retrain_share_milli=share, reason=_reason(stream, option)
            )
    if given == list(first.assignments):
        return plan
    # A completion ends a phase: one on spare capacity leaves the others where they are, if it comes first.
    forecasts = [(Phase(tuple(given)), *rest) for rest in (plan.phases, plan.phases[1:])]
    scores = [evaluate_phases(view, phases).score for phases in forecasts]
    best = max(range(len(scores)), key=scores.__getitem__)
    return Plan(forecasts[best], scores[best])


def _rank(stream: StreamView) -> tuple[bool, float]:
    best = max((_rate(stream, option) for option in stream.retrain_options), default=0.0)
    return stream.running is None, -best


def _rate(stream: StreamView, option: RetrainOption) -> float:
    """Returns the gain in accuracy per GPU-second."""
    return (option.accuracy_after - stream.accuracy) / max(option.gpu_s, 1e-9)


def _option(
    view: WindowView, stream: StreamView, assignment: Assignment, share_milli: int
) -> RetrainOption | None:
    if share_milli <= 0 or assignment.retrain_share_milli or not assignment.inference.by_golden:
        return None
    if stream.running is not None:
        return stream.running.option if stream.running.elsewhere is None else None
    left_s = (view.window_end_us - view.now_us) / US_PER_S
    able_gpu_s = left_s * view.training_speed.speed_at(share_milli)
    worth_it = [
        option
        for option in stream.retrain_options
        if option.gpu_s <= able_gpu_s and option.accuracy_after - stream.accuracy >= LEAST_GAIN
    ]
    return max(worth_it, key=lambda option: option.accuracy_after, default=None)


def _reason(stream: StreamView, option: RetrainOption) -> str:
    return (
        f"the golden detector answers; on spare capacity {option.config.name} is to raise the student from "
        f"{100 * stream.accuracy:.0f} to {100 * option.accuracy_after:.0f}%"
    )
