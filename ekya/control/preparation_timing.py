"""Decides which streams are labelled and profiled, and when: with a window, and after a drift."""

from dataclasses import replace
from math import ceil

from ekya.control.options import LoopOptions
from ekya.control.views import Histories, free_milli_at_home, history_of, homes_of, window_view
from ekya.core import commands as cmd
from ekya.core.profile import Family, Profiler, family_of
from ekya.core.shares import Job, Work
from ekya.core.state import FleetState, StreamState
from ekya.core.stream_faults import Status
from ekya.core.units import FULL_GPU_MILLI, US_PER_S, StreamId
from ekya.core.view import WindowView
from ekya.core.weights import SceneOf
from ekya.planning.adaptation.label_pooling import same_scene
from ekya.planning.placement.homes import PREPARATION_GPU
from ekya.planning.preparation.steps import next_prepared
from ekya.planning.profiling.pruning import select_families
from ekya.planning.schedulers.allocation import left_by_inference
from ekya.planning.schedulers.scheduler import Needs

INFERENCE_PROFILE_EVERY = 4
"""Least number of windows between two profiles of measured λ: motion changes more slowly than appearance."""

MOST_REACTIONS = 2
"""Preparations in a window that answer drifts of one stream: one at once, on the few objects that the new
scene has shown, and one when it has shown more. Others would take the window's share from retraining."""

LONGEST_PART = 0.3
"""Part of a window that preparation may take where inference leaves it little share."""


def time_limit_us(share_milli: int, options: LoopOptions) -> int:
    """Returns the time limit of a preparation at a share: for the same work, within ``LONGEST_PART``."""
    most, share = (
        options.training_speed.speed_at(milli) for milli in (options.preparation_share_milli, share_milli)
    )
    longest_us = _longest_us(options)
    return min(round(options.preparation_us * most / share), longest_us) if share > 0.0 else longest_us


def _longest_us(options: LoopOptions) -> int:
    return max(int(options.window_us * LONGEST_PART), options.preparation_us)


def window_preparation(
    fleet: FleetState, histories: Histories, now_us: int, options: LoopOptions, needs: Needs
) -> cmd.BeginPreparation | None:
    """Returns the preparation of the open window: of all streams, or of those whose turn it is.

    What the golden detector answers is prepared in every window, and first, once its λ are known.

    None where there is nothing to do.
    """
    window = fleet.window
    # A stream that was just added has no frames to label yet.
    serving = [
        stream
        for stream in fleet.streams
        if _may_learn(stream)
        and stream.added_in < window
        and (needs.labels or _profiles_inference(stream, window, needs))
    ]
    if not serving:
        return None
    share_milli = _share_milli(fleet, histories, now_us, options, needs)
    # To profile λ takes as long as to label.
    cheap = [one for one in serving if _has_answers(one) and not _lacks_inference(one, window, needs)]
    others = [one for one in serving if one not in cheap]
    places = _places(len(others), share_milli, options)
    if places < len(others):
        others = [fleet.stream(one) for one in next_prepared(others, places)]
    serving = [*cheap, *others]
    is_scarce = share_milli < options.preparation_share_milli
    # Whether the golden detector is to go on answering is decided by its λ alone.
    first = {
        one.stream: (is_scarce or _has_answers(one)) and _lacks_inference(one, window, needs)
        for one in serving
    }

    return cmd.BeginPreparation(
        window=window,
        share_milli=share_milli,
        streams=tuple(
            cmd.PrepareStream(
                stream=stream.stream,
                inference=(
                    options.inference_configs
                    if first[stream.stream] or _profiles_inference(stream, window, needs)
                    else ()
                ),
                families=_families(fleet, histories, stream.stream, options, needs),
                scenes=_scenes(fleet, stream, options),
                labels=needs.labels,
                inference_first=first[stream.stream] or not needs.labels,
            )
            for stream in serving
        ),
        training_speed=options.training_speed,
        budget=fleet.label_budget,
    )


def _scenes(fleet: FleetState, stream: StreamState, options: LoopOptions) -> tuple[SceneOf, ...]:
    """Returns the scenes whose labels a stream learns from beside its newest."""
    if not options.pools_labels:
        return ()
    return same_scene(stream.stream, {one.stream: one.scene_us for one in fleet.streams})


def _profiles_inference(stream: StreamState, window: int, needs: Needs) -> bool:
    last = stream.inference_profiled_in
    due_again = last is None or window - last >= INFERENCE_PROFILE_EVERY
    return needs.inference_profile and (needs.true_profile or due_again)


def _lacks_inference(stream: StreamState, window: int, needs: Needs) -> bool:
    """Returns whether a new stream's λ are a guess still, which must not be so where shares are small."""
    is_new = window - stream.added_in <= INFERENCE_PROFILE_EVERY
    return needs.inference_profile and is_new and not stream.inference_measured


def may_prepare_late(fleet: FleetState, now_us: int, options: LoopOptions) -> bool:
    """Returns whether the window has no labels yet, and there is still time to make them."""
    unlabelled = not any(
        stream.labels.training_crops or stream.labels.validation_crops for stream in fleet.streams
    )
    in_time = now_us + options.preparation_us < fleet.window_end_us
    return fleet.window > 0 and not fleet.preparing and unlabelled and in_time


def plan_mid_window_preparation(
    fleet: FleetState, histories: Histories, now_us: int, options: LoopOptions, needs: Needs
) -> cmd.BeginPreparation | None:
    """Returns a preparation inside the window; None without a stream that wants one and has time for it.

    It is of the streams that have drifted. One at a time runs; what drifts meanwhile is prepared after it,
    and what drifts while the micro-profiler loads is prepared as soon as that is done. A drift without a
    preparation is labelled with the next window, or after its preparation if that labels mostly the scene
    before.
    """
    if not needs.labels or fleet.preparing or fleet.profiler_down or fleet.window < 0:
        return None
    waiting = [
        stream
        for stream in fleet.streams
        if _may_learn(stream)
        and (
            (stream.requested and more_labels_us(stream, options) is None)
            or (
                options.reacts_to_drift
                and stream.drifted_us is not None
                and stream.reactions < MOST_REACTIONS
            )
        )
    ]
    if not waiting:
        return None
    share_milli = _share_milli(fleet, histories, now_us, options, needs)
    left_us = fleet.window_end_us - now_us - time_limit_us(share_milli, options)
    in_time = [stream for stream in waiting if _cheapest_us(stream, histories, options) <= left_us]
    answered = [stream for stream in in_time if _has_answers(stream)]
    others = [stream for stream in in_time if not _has_answers(stream)]
    asked = [
        cmd.PrepareStream(
            stream.stream,
            (),
            _families(fleet, histories, stream.stream, options, needs),
            _since_us(fleet, stream),
            _scenes(fleet, stream, options),
        )
        for stream in (*answered, *others[: _places(len(others), share_milli, options)])
    ]
    if not asked:
        return None
    return cmd.BeginPreparation(
        window=fleet.window,
        share_milli=share_milli,
        streams=tuple(asked),
        training_speed=options.training_speed,
        round=fleet.rounds + 1,
        budget=fleet.label_budget,
    )


def more_labels_us(stream: StreamState, options: LoopOptions) -> int | None:
    """Returns when a stream's scene is to be labelled again inside the window; None where it is not to be."""
    return stream.more_labels_us if options.reacts_to_drift or stream.requested else None


def _has_answers(stream: StreamState) -> bool:
    """Returns whether the golden detector answers a stream's frames, so that labels cost next to nothing."""
    return stream.inference is not None and stream.inference.by_golden


def _may_learn(stream: StreamState) -> bool:
    """Returns whether new weights may serve a stream."""
    return stream.status is Status.SERVING and not stream.frozen


def _since_us(fleet: FleetState, stream: StreamState) -> int:
    """Returns the stream time since which frames are labelled inside a window."""
    if stream.drifted_us is not None:
        return stream.drifted_us
    return max(fleet.window_open_us, stream.labels.until_us or 0, stream.scene_us or 0)


def _share_milli(
    fleet: FleetState, histories: Histories, now_us: int, options: LoopOptions, needs: Needs
) -> int:
    """Returns the share of a preparation: what inference leaves at its floors, at least δ.

    Without any share a stream whose inference needs the rest to reach a_MIN would never be retrained. Where
    the golden detector answers a stream, the preparation takes longer rather than its share.
    """
    view = window_view(fleet, now_us, options, needs, histories)
    if options.homes:
        here = {stream for stream, gpu in homes_of(fleet, options).items() if gpu == PREPARATION_GPU}
        streams = tuple(stream for stream in view.streams if stream.stream in here)
        free_milli = free_milli_at_home(fleet, options)[PREPARATION_GPU]
        view = replace(view, streams=streams, capacity_milli=free_milli)
    share_milli = min(max(left_by_inference(view), options.quantum_milli), options.preparation_share_milli)
    slowest = options.preparation_share_milli * options.preparation_us / _longest_us(options)
    least_milli = ceil(slowest / options.quantum_milli) * options.quantum_milli
    beside_milli = left_by_inference(view, _golden_floors(fleet, view))
    return min(share_milli, max(beside_milli, least_milli))


def _golden_floors(fleet: FleetState, view: WindowView) -> dict[Job, int]:
    """Returns the least shares at which the golden detector still answers the streams that it does answer."""
    return {
        Job(stream.stream, Work.INFERENCE): min(
            option.share_needed_milli for option in stream.inference_options if option.config.by_golden
        )
        for stream in view.streams
        if _has_answers(fleet.stream(stream.stream))
    }


def _places(streams: int, share_milli: int, options: LoopOptions) -> int:
    """Returns the number of streams that a preparation has time for at its share, of those that want one."""
    most = streams if options.prepared_streams is None else min(streams, options.prepared_streams)
    speed = options.training_speed
    work = time_limit_us(share_milli, options) * speed.speed_at(share_milli)
    whole = options.preparation_us * speed.speed_at(options.preparation_share_milli)
    # The limit is whole microseconds, which must not cost a stream.
    return max(min(int(most * work / whole + 1e-3), most), 1) if whole else most


def _cheapest_us(stream: StreamState, histories: Histories, options: LoopOptions) -> int:
    """Returns the time for the cheapest retraining, which has all that is left.

    Costs of γ are those that were profiled; before these, priors for as many crops as are labelled.
    """
    known = [one.gpu_s for one in history_of(histories, stream.stream).observations]
    priors = [
        cost.gpu_s(config, stream.labels.training_crops)
        for cost in options.family_costs
        for config in options.retrain_configs
        if family_of(config) == cost.family
    ]
    speed = options.training_speed.speed_at(min(options.capacity_milli, FULL_GPU_MILLI))
    return round(min(known or priors, default=0.0) / speed * US_PER_S)


def _families(
    fleet: FleetState, histories: Histories, stream: StreamId, options: LoopOptions, needs: Needs
) -> tuple[Family, ...]:
    if not needs.micro_profile or (options.profiler is not Profiler.PAPER and not needs.true_profile):
        return ()
    if needs.true_profile:
        return tuple(sorted({family_of(config) for config in options.retrain_configs}))
    return select_families(options.retrain_configs, history_of(histories, stream), fleet.window)
