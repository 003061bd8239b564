"""Builds a scheduler's view from the loop's state."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean

from ekya.control.checkpointing import early_part, gpu_s_left
from ekya.control.options import LoopOptions, StreamTerms
from ekya.core.configs import InferenceConfig
from ekya.core.plan import Phase
from ekya.core.profile import Profiler, family_of
from ekya.core.state import FleetState, StreamState
from ekya.core.stream_faults import Status
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, RetrainOption, RunningRetraining, StreamView, WindowView
from ekya.planning.adaptation.shadow_gate import LEAST_OBJECTS
from ekya.planning.placement.homes import PREPARATION_GPU, guests_gpu
from ekya.planning.profiling.estimate import estimate_as_in_the_paper, estimate_by_outcomes
from ekya.planning.profiling.history import ProfileHistory
from ekya.planning.profiling.inference_profile import at_measured_use
from ekya.planning.profiling.outcomes import Outcomes, learn_outcomes
from ekya.planning.schedulers.checkpoint_gain import early_part_left
from ekya.planning.schedulers.scheduler import Needs

Histories = Mapping[StreamId, ProfileHistory]
"""Results of γ per stream in past windows."""

AFTER_PART = 0.5
"""Part of a window for which an accuracy still counts after its end: until the next window's retrainings."""

UNKNOWN_ACCURACY = 0.8
"""Assumed accuracy of a model before its first measurement, since it was judged good enough to serve."""


def history_of(histories: Histories, stream: StreamId) -> ProfileHistory:
    """Returns a stream's history; empty where there is none yet."""
    return histories.get(stream, ProfileHistory())


def window_view(
    state: FleetState,
    now_us: int,
    options: LoopOptions,
    needs: Needs,
    histories: Histories,
    previous: tuple[Phase, ...] = (),
) -> WindowView:
    """Returns the snapshot at ``now_us``; ``previous`` are the phases of the last plan.

    Streams that do not serve are left out, and their jobs' shares are subtracted from the capacity.
    """
    terms = {one.stream: one for one in options.terms}
    outcomes = learn_outcomes(histories)
    streams = tuple(
        _stream_view(stream, state, options, needs, outcomes, _terms(stream, terms))
        for stream in state.streams
        if stream.status is Status.SERVING
    )
    return WindowView(
        now_us=now_us,
        window_end_us=state.window_end_us,
        capacity_milli=max(options.capacity_milli - sum(held_milli(state, options)), 0),
        quantum_milli=options.quantum_milli,
        steal_milli=options.steal_milli,
        min_accuracy=options.min_accuracy,
        streams=streams,
        training_speed=options.retraining_speed,
        seed=options.seed,
        previous=previous,
        inference_speed=options.inference_speed,
        after_us=round(AFTER_PART * options.window_us),
    )


def _terms(stream: StreamState, terms: Mapping[StreamId, StreamTerms]) -> StreamTerms:
    """Returns the terms of a stream: as changed, or as the run began."""
    changed = stream.terms
    if changed is not None:
        return StreamTerms(stream.stream, changed.weight, changed.max_age_us)
    return terms.get(stream.stream, StreamTerms(stream.stream))


def held_milli(state: FleetState, options: LoopOptions) -> tuple[int, ...]:
    """Returns the shares that are unavailable to the plan.

    These are those of the preparation, of jobs of streams that do not serve, of other servers' jobs, and of
    nodes that are gone.
    """
    not_serving = tuple(
        stream.job.share_milli
        for stream in state.streams
        if stream.job is not None and stream.status is not Status.SERVING
    )
    prepares = (state.preparation.share_milli,) if state.preparation is not None else ()
    lent = (state.lent_milli,) if state.lent_milli else ()
    gone = (options.pools[pool] for pool in _lost_pools(state, options))
    return (*prepares, *not_serving, *lent, *gone)


def homes_of(state: FleetState, options: LoopOptions) -> dict[StreamId, int]:
    """Returns the pool of every stream's home, where processes cannot change to another one."""
    added = {stream.stream: stream.gpu for stream in state.streams if stream.gpu is not None}
    homes, pools = {one.stream: one.gpu for one in options.homes} | added, options.pool_by_place
    return {stream: pools[place] for stream, place in homes.items()}


def free_milli_at_home(state: FleetState, options: LoopOptions) -> tuple[int, ...]:
    """Returns the share that ``held_milli`` leaves in each pool, where every job has a home."""
    homes = homes_of(state, options)
    free = list(options.pools)
    if state.preparation is not None:
        free[PREPARATION_GPU] -= state.preparation.share_milli
    free[_guests_pool(options)] -= state.lent_milli
    for stream in state.streams:
        if stream.job is not None and stream.status is not Status.SERVING:
            free[homes[stream.stream]] -= stream.job.share_milli
    for pool in _lost_pools(state, options):
        free[pool] = 0
    return tuple(max(milli, 0) for milli in free)


def _lost_pools(state: FleetState, options: LoopOptions) -> set[int]:
    return {options.pool_by_place[gpu] for gpu in state.lost_gpus}


def _guests_pool(options: LoopOptions) -> int:
    """Returns where guests are: with several nodes on the first, which is the driver's."""
    return 0 if options.pools_milli else guests_gpu(options.capacity_milli)


def lendable_milli(state: FleetState, options: LoopOptions, until_us: int) -> int:
    """Returns spare capacity that can still be lent to other servers; negative where too much is lent.

    A quantum for each serving stream must remain, and what the next preparation needs, over all GPUs, and
    with home GPUs also on that of the guests. That is its share, if it begins with the next window, before
    ``until_us``. One that a drift may cause in this window takes what guests leave, and at least a
    quantum.
    """
    may_react = options.reacts_to_drift and not state.preparing
    prepares_milli = 0
    if until_us > state.window_end_us:
        prepares_milli = options.preparation_share_milli
    elif may_react:
        prepares_milli = options.quantum_milli
    serving = [stream.stream for stream in state.streams if stream.status is Status.SERVING]
    free_milli = max(options.capacity_milli - sum(held_milli(state, options)), 0)
    lendable = free_milli - prepares_milli - len(serving) * options.quantum_milli
    if not options.homes:
        return lendable
    gpu = _guests_pool(options)
    at_home = {stream for stream, home in homes_of(state, options).items() if home == gpu}
    there_milli = (
        free_milli_at_home(state, options)[gpu] - len(at_home.intersection(serving)) * options.quantum_milli
    )
    if gpu == PREPARATION_GPU:
        there_milli -= prepares_milli
    return min(lendable, there_milli)


def _stream_view(
    stream: StreamState,
    state: FleetState,
    options: LoopOptions,
    needs: Needs,
    outcomes: Outcomes,
    terms: StreamTerms,
) -> StreamView:
    accuracy = UNKNOWN_ACCURACY if stream.accuracy is None else stream.accuracy
    serving = _on_all_labels(stream, accuracy, needs)
    return StreamView(
        stream=stream.stream,
        accuracy=serving,
        retrain_options=tuple(
            replace(option, early_part=early_part(option, serving, options) if needs.early_parts else 0.0)
            for option in _offered(stream, state, serving, options, needs, outcomes)
            if stream.profiles.has_room_for(option.config)
        ),
        inference_options=_pooled(stream, state, inference_needs(stream, options)),
        running=_running(stream),
        weight=terms.weight,
        max_age_us=terms.max_age_us,
        histogram=stream.labels.histogram,
        cached=stream.cached if not (state.preparing or stream.frozen) and _idle(stream) else (),
    )


def _pooled(
    stream: StreamState, state: FleetState, known: tuple[InferenceOption, ...]
) -> tuple[InferenceOption, ...]:
    """Returns Λ where those of a stream that was never profiled lose what they lose on the others."""
    seen = [] if stream.inference_measured else [one for one in state.streams if one.inference_measured]
    measured: dict[InferenceConfig, list[float]] = {}
    for one in seen:
        for option in one.inference_options:
            measured.setdefault(option.config, []).append(option.relative_accuracy)
    return tuple(
        replace(option, relative_accuracy=fmean(measured[option.config]))
        if option.config in measured
        else option
        for option in known
    )


def inference_needs(stream: StreamState, options: LoopOptions) -> tuple[InferenceOption, ...]:
    """Returns Λ with the shares they need, corrected by the last measured need where there is one."""
    need = stream.need
    if need is None:
        return stream.inference_options
    return at_measured_use(stream.inference_options, need.config, need.share_milli, options.inference_speed)


def falls_behind(stream: StreamState, options: LoopOptions) -> bool:
    """Returns whether the current λ does not keep up at its share, by the latest needs."""
    needs = {option.config: option.share_needed_milli for option in inference_needs(stream, options)}
    return stream.inference is not None and needs.get(stream.inference, 0) > stream.inference_share_milli


def _offered(
    stream: StreamState,
    state: FleetState,
    accuracy: float,
    options: LoopOptions,
    needs: Needs,
    outcomes: Outcomes,
) -> tuple[RetrainOption, ...]:
    if not needs.elsewhere:
        preparing = state.is_preparing(stream.stream)
        return retrain_options(stream, preparing, accuracy, options, needs, outcomes)
    # A remote retraining needs no labels and costs no share here, but window 0 has no data to train on.
    if state.window < 1 or stream.frozen or not _idle(stream):
        return ()
    return tuple(RetrainOption(config, accuracy, 0.0) for config in options.retrain_configs)


def _idle(stream: StreamState) -> bool:
    return stream.job is None and stream.finished is None


def _on_all_labels(stream: StreamState, accuracy: float, needs: Needs) -> float:
    """Returns the serving model's accuracy on all labels, if it was measured there, and not on a fifth of
    them.

    The estimates of γ start from that accuracy, so a gain is not an artefact of the few validation labels.
    Schedulers that use checkpoints get the accuracy of these instead, once they serve.
    """
    measured = stream.labels.accuracy_on_all
    if measured is None or stream.labels.new_classes or (needs.early_parts and stream.serves_retrained):
        return accuracy
    return measured


def _running(stream: StreamState) -> RunningRetraining | None:
    job = stream.job
    if job is None:
        return None
    left_gpu_s = gpu_s_left(job)
    work_gpu_s = left_gpu_s + job.gpu_s
    early = early_part_left(job.early_part, left_gpu_s / work_gpu_s if work_gpu_s > 0.0 else 0.0)
    left = RetrainOption(job.config, job.outlook, left_gpu_s, early_part=early)
    return RunningRetraining(job.job, left, job.share_milli, job.elsewhere)


def retrain_options(
    stream: StreamState,
    preparing: bool,
    accuracy: float,
    options: LoopOptions,
    needs: Needs,
    outcomes: Outcomes,
) -> tuple[RetrainOption, ...]:
    """Returns Γ for a stream: empty during its preparation, during or after its retraining, and where too few
    objects have a label for any conclusion."""
    labels = stream.labels
    too_few = labels.training_crops == 0 or labels.labelled_objects < LEAST_OBJECTS
    if preparing or stream.frozen or not _idle(stream) or too_few:
        return ()
    if needs.micro_profile and (options.profiler is Profiler.PAPER or stream.profiles.options):
        fitted = estimate_as_in_the_paper(
            stream.profiles.curves, options.retrain_configs, labels.learnt_crops
        )
        return tuple(sorted((*fitted, *stream.profiles.options), key=lambda option: option.config))
    if needs.micro_profile:
        # Without an accuracy of the model that serves it is unknown what there is to gain.
        if stream.accuracy is None or labels.validation_crops == 0:
            return ()
        expected_error = partial(outcomes.expected_error, stream.stream, serving=accuracy)
        return estimate_by_outcomes(
            options.retrain_configs, options.family_costs, labels.learnt_crops, accuracy, expected_error
        )
    # Without estimates only the costs of γ are available, not their gains.
    costs = {cost.family: cost for cost in options.family_costs}
    return tuple(
        RetrainOption(config, accuracy, costs[family_of(config)].gpu_s(config, labels.learnt_crops))
        for config in options.retrain_configs
    )
