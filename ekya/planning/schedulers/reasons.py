"""Builds assignments from shares, each with its reason in one sentence for the operator."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.shares import Job, Work
from ekya.core.units import StreamId, us_to_seconds
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.core.weights import Elsewhere
from ekya.planning.schedulers.allocation import choices_by_stream, equal_shares, inference_jobs
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.pick import InferenceChoice, RetrainChoice, StreamChoices, fixed_retraining


def one_phase_plan(
    view: WindowView,
    choices: Mapping[StreamId, StreamChoices],
    shares: Mapping[Job, int],
) -> Plan:
    """Returns the plan in which every job holds its share until the window's end."""
    return plan_of(
        view,
        [
            build_assignment(
                choice,
                choice.choose_retraining(retrain_share := shares.get(Job(stream, Work.RETRAINING), 0)),
                retrain_share,
                shares[Job(stream, Work.INFERENCE)],
            )
            for stream, choice in choices.items()
        ],
    )


def inference_plan(
    view: WindowView,
    weights: Callable[[StreamView], tuple[RetrainOption | None, Elsewhere | None]],
    why_not: str,
) -> Plan:
    """Returns the plan that gives all GPUs to inference, in equal shares.

    Args:
        view: the view.
        weights: returns a stream's γ that needs no share, and how its weights arrive.
        why_not: as in ``assignment``.
    """
    shares = equal_shares(view, inference_jobs(view))
    assignments = []
    for choice, share_milli in zip(choices_by_stream(view).values(), shares.values(), strict=True):
        option, elsewhere = weights(choice.stream)
        retrain = fixed_retraining(view, choice.stream, option, 0)
        assignments.append(
            build_assignment(
                choice, retrain, 0, share_milli, forecast=False, why_not=why_not, elsewhere=elsewhere
            )
        )
    return plan_of(view, assignments)


def plan_of(view: WindowView, assignments: Iterable[Assignment]) -> Plan:
    """Returns a plan of one phase, with its objective."""
    phase = Phase(tuple(assignments))
    return Plan((phase,), evaluate_phases(view, (phase,)).score)


def build_assignment(
    stream: StreamChoices,
    retrain: RetrainChoice,
    retrain_share_milli: int,
    inference_share_milli: int,
    *,
    forecast: bool = True,
    why_not: str | None = None,
    elsewhere: Elsewhere | None = None,
    watched: bool = False,
) -> Assignment:
    """Returns what one stream gets, and why; the share of a stream without a retraining is reported as idle.

    Args:
        stream, retrain, retrain_share_milli, inference_share_milli: the choice.
        forecast: whether the expected accuracy rests on a profile and may be stated.
        why_not: reason why nothing is retrained, if it is not that retraining would not pay.
        elsewhere: how the retrained weights arrive, where they are not trained here.
        watched: whether inference has its share for one frame a second, and not for what the share gains.
    """
    inference = stream.choose_inference(inference_share_milli)
    if retrain.option is None:
        what = _no_retraining_words(stream, retrain_share_milli, why_not)
    elif elsewhere is None:
        what = _retraining_words(stream, retrain.option, retrain, retrain_share_milli, forecast)
    else:
        what = _elsewhere_words(stream, retrain.option, elsewhere)
    parts = [what, _inference_words(stream, inference, inference_share_milli)]
    if watched:
        parts.append("has it so that one frame a second is analysed, which every camera keeps")
    if retrain.option is None and retrain_share_milli > 0:
        parts.append(f"{_percent(retrain_share_milli)} of a GPU stays idle")
    return Assignment(
        stream=stream.stream.stream,
        retrain=retrain.option.config if retrain.option else None,
        retrain_share_milli=retrain_share_milli if retrain.option else 0,
        inference=inference.option.config,
        inference_share_milli=inference_share_milli,
        below_min=inference.below_min,
        reason="; ".join(parts),
        elsewhere=elsewhere if retrain.option else None,
        too_old=inference.too_old,
    )


def with_more_inference(assigned: Assignment, share_milli: int) -> Assignment:
    """Returns the assignment with a larger inference share, from shares that no other job gains from."""
    more_milli = share_milli - assigned.inference_share_milli
    if more_milli == 0:
        return assigned
    more = f"has {_percent(more_milli)} more for crowded frames, which no other job gains from"
    return replace(assigned, inference_share_milli=share_milli, reason=f"{assigned.reason}; {more}")


def _no_retraining_words(stream: StreamChoices, share_milli: int, why_not: str | None) -> str:
    if not stream.has_retraining:
        return "has nothing to retrain"
    if why_not is None:
        why_not = (
            "no configuration gains before the window ends"
            if share_milli > 0
            else "its share gains more elsewhere"
        )
    return f"does not retrain, as {why_not}"


def _retraining_words(
    stream: StreamChoices, option: RetrainOption, retrain: RetrainChoice, share_milli: int, forecast: bool
) -> str:
    if share_milli == 0:
        return f"pauses its retraining ({option.config.name})"
    verb = "keeps retraining" if stream.stream.running else "retrains"
    what = f"{verb} {option.config.name} at {_percent(share_milli)} of a GPU"
    if retrain.completes_us is None:
        meanwhile = "; its checkpoints serve" if forecast and option.early_part > 0.0 else ""
        return f"{what}, which is not done before the window ends{meanwhile}"
    after_s = us_to_seconds(retrain.completes_us - stream.view.now_us)
    after = option.accuracy_after
    if not forecast:
        return f"{what}, done after {after_s:.0f} s"
    return f"{what}: {stream.stream.accuracy:.2f} -> about {after:.2f} after {after_s:.0f} s"


def _elsewhere_words(stream: StreamChoices, option: RetrainOption, elsewhere: Elsewhere) -> str:
    if elsewhere.trained_in is not None:
        return f"serves again what it learnt in window {elsewhere.trained_in} ({option.config.name})"
    what = f"waits for weights from the cloud ({option.config.name})"
    if elsewhere.arrives_us >= stream.view.window_end_us:
        return f"{what}, which are not here before the window ends"
    return f"{what}, here after {us_to_seconds(max(0, elsewhere.arrives_us - stream.view.now_us)):.0f} s"


def _inference_words(stream: StreamChoices, inference: InferenceChoice, share_milli: int) -> str:
    option = inference.option
    words = f"analyses {option.config.name} at {_percent(share_milli)} of a GPU"
    if share_milli < option.share_needed_milli:
        speed = stream.view.inference_speed
        kept = speed.linear_milli(share_milli) / speed.linear_milli(option.share_needed_milli)
        words += f", too little for {1 - kept:.0%} of these frames"
    if inference.below_min:
        words += f", below the minimum accuracy of {stream.view.min_accuracy:.2f}"
    if inference.too_old and stream.stream.max_age_us is not None:
        limit_s = us_to_seconds(stream.stream.max_age_us)
        words += f", with results older than its limit of {limit_s:g} s"
    return words


def _percent(share_milli: int) -> str:
    return f"{share_milli / 10:g}%"
