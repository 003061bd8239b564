"""Decides which streams are labelled and profiled, and when: with a window, in doses, and after a drift."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from statistics import fmean, median

from ekya.control.options import LoopOptions
from ekya.control.views import Histories, free_milli_at_home, history_of, homes_of, window_view
from ekya.core import commands as cmd
from ekya.core.profile import Family, family_of
from ekya.core.state import FleetState, StreamState
from ekya.core.stream_faults import Status
from ekya.core.units import FULL_GPU_MILLI, US_PER_S, StreamId, us_to_seconds
from ekya.core.view import WindowView
from ekya.core.weights import WHOLE, Dose, SceneOf
from ekya.planning.adaptation.kept_models import nearest_candidates
from ekya.planning.adaptation.label_pooling import same_scene
from ekya.planning.placement.homes import PREPARATION_GPU
from ekya.planning.preparation.steps import next_prepared
from ekya.planning.preparation.worth import Prospect, best_investment
from ekya.planning.profiling.history import ProfileHistory, expected_gain, unseen_error
from ekya.planning.profiling.pruning import select_families
from ekya.planning.schedulers.allocation import left_by_inference
from ekya.planning.schedulers.scheduler import Needs

INFERENCE_PROFILE_EVERY = 4
"""Least number of windows between two profiles of λ: motion changes more slowly than appearance."""

MOST_REACTIONS = 2
"""Preparations in a window that answer drifts of one stream: one at once, on the few objects that the new
scene has shown, and one when it has shown more. Others would take the window's share from retraining."""

LONGEST_PART = 0.3
"""Part of a window that preparation may take where inference leaves it little share."""


DOES_NOT_PAY = "labels and a retraining would take more from inference than they are expected to gain"


def time_limit_us(share_milli: int, options: LoopOptions) -> int:
    """Returns the time limit of a preparation at a share: for the same work, within ``LONGEST_PART``."""
    most, share = (
        options.training_speed.speed_at(milli) for milli in (options.preparation_share_milli, share_milli)
    )
    longest_us = max(int(options.window_us * LONGEST_PART), options.preparation_us)
    return min(round(options.preparation_us * most / share), longest_us) if share > 0.0 else longest_us


def window_preparation(
    fleet: FleetState, histories: Histories, now_us: int, options: LoopOptions, needs: Needs
) -> Iterator[cmd.BeginPreparation | cmd.SkipPreparation]:
    """Yields the preparation of the open window: of the streams that are worth it and whose turn it is."""
    window = fleet.window
    # A stream that was just added has no frames to label yet.
    serving = [stream for stream in fleet.streams if _may_learn(stream) and stream.added_in < window]

    share_milli, worth_it = _invested(fleet, histories, now_us, options, needs, serving)
    spared = tuple(stream.stream for stream in serving if stream.stream not in worth_it)
    if spared:
        yield cmd.SkipPreparation(window, spared, DOES_NOT_PAY)
    if not worth_it and not options.preparation_bursts:
        return
    serving = [stream for stream in serving if stream.stream in worth_it]
    places = _places(len(serving), share_milli, options)
    if places < len(serving):
        serving = [fleet.stream(one) for one in next_prepared(serving, places)]

    yield cmd.BeginPreparation(
        window=window,
        share_milli=share_milli,
        streams=tuple(
            cmd.PrepareStream(
                stream=stream.stream,
                inference=options.inference_configs if _profiles_inference(stream, window, needs) else (),
                families=_families(fleet, histories, stream.stream, options, needs),
                candidates=nearest_candidates(fleet.zoo, stream.picture, stream.kept),
                kept=stream.kept,
                scenes=_scenes(fleet, stream, options, needs),
                dose=Dose(options.doses),
            )
            for stream in serving
        ),
        training_speed=options.training_speed,
        budget=fleet.label_budget,
    )


def _scenes(
    fleet: FleetState, stream: StreamState, options: LoopOptions, needs: Needs
) -> tuple[SceneOf, ...]:
    """Returns the scenes whose labels are tried beside a stream's newest; none without trials."""
    if not (options.pools_labels and needs.micro_profile):
        return ()
    return same_scene(stream.stream, {one.stream: one.scene_us for one in fleet.streams})


def _profiles_inference(stream: StreamState, window: int, needs: Needs) -> bool:
    last = stream.inference_profiled_in
    due_again = last is None or window - last >= INFERENCE_PROFILE_EVERY
    return needs.inference_profile and (needs.true_profile or due_again)


def may_prepare_late(fleet: FleetState, now_us: int, options: LoopOptions) -> bool:
    """Returns whether the window has no labels yet, and there is still time to make them."""
    unlabelled = not any(
        stream.labels.training_crops or stream.labels.validation_crops for stream in fleet.streams
    )
    in_time = now_us + options.preparation_us < fleet.window_end_us
    return fleet.window > 0 and not fleet.preparing and unlabelled and in_time


def plan_mid_window_preparation(
    fleet: FleetState,
    histories: Histories,
    now_us: int,
    options: LoopOptions,
    needs: Needs,
    dose_due: bool = False,
) -> cmd.BeginPreparation | None:
    """Returns a preparation inside the window; None without a stream that it is worth, and has time for.

    It is of the streams that have drifted and, where a dose is due, of the others after them. One at a time
    runs; what drifts meanwhile is prepared after it. A drift without a preparation is labelled with the next
    window, or after its preparation if that labels mostly the scene before.
    """
    if not needs.labels or fleet.preparing or fleet.window < 0:
        return None
    serving = [stream for stream in fleet.streams if _may_learn(stream)]
    new_scenes = [
        stream
        for stream in serving
        if (stream.requested and stream.more_labels_us is None)
        or (options.reacts_to_drift and stream.drifted_us is not None and stream.reactions < MOST_REACTIONS)
    ]
    # A new scene that is to be labelled again soon needs no dose before that.
    same_scenes = [
        stream
        for stream in serving
        if dose_due and stream not in new_scenes and stream.more_labels_us is None
    ]
    waiting = [*new_scenes, *same_scenes]
    if not waiting:
        return None
    share_milli, worth_it = _invested(fleet, histories, now_us, options, needs, waiting)
    left_us = fleet.window_end_us - now_us - time_limit_us(share_milli, options)
    asked = [
        cmd.PrepareStream(
            stream.stream,
            (),
            _families(fleet, histories, stream.stream, options, needs),
            _since_us(fleet, stream, stream in new_scenes),
            nearest_candidates(fleet.zoo, stream.picture, stream.kept),
            stream.kept,
            _scenes(fleet, stream, options, needs),
            WHOLE if stream in new_scenes else Dose(options.doses, stream.accuracy),
        )
        for stream in waiting
        if stream.stream in worth_it and _cheapest_us(stream, histories, options) <= left_us
    ]
    if not asked:
        return None
    return cmd.BeginPreparation(
        window=fleet.window,
        share_milli=share_milli,
        streams=tuple(asked[: _places(len(asked), share_milli, options)]),
        training_speed=options.training_speed,
        round=fleet.rounds + 1,
        budget=fleet.label_budget,
    )


def _may_learn(stream: StreamState) -> bool:
    """Returns whether new weights may serve a stream."""
    return stream.status is Status.SERVING and not stream.frozen


def _since_us(fleet: FleetState, stream: StreamState, is_new_scene: bool) -> int:
    """Returns the stream time since which frames are labelled inside a window."""
    if is_new_scene and stream.drifted_us is not None:
        return stream.drifted_us
    return _labelled_until_us(fleet, stream)


def _labelled_until_us(fleet: FleetState, stream: StreamState) -> int:
    """Returns the stream time since which no labels of the open window show a stream's scene."""
    return max(fleet.window_open_us, stream.labels.until_us or 0, stream.scene_us or 0)


def _invested(
    fleet: FleetState,
    histories: Histories,
    now_us: int,
    options: LoopOptions,
    needs: Needs,
    wanting: Sequence[StreamState],
) -> tuple[int, Collection[StreamId]]:
    """Returns the share of a preparation that begins now, and the streams that are worth preparing.

    A scheduler that does not profile γ, or knows them all, prepares what it can.
    """
    most = options.preparation_share_milli
    everything = frozenset(stream.stream for stream in wanting)
    if options.preparation_bursts:
        return most, everything
    view = window_view(fleet, now_us, options, needs, histories)
    most = _left_milli(view, fleet, options)
    if not needs.micro_profile or needs.true_profile:
        return most, everything
    accuracies = {stream.stream: stream.accuracy for stream in view.streams}
    costs = [stream.prepared_gpu_s for stream in fleet.streams if stream.prepared_gpu_s is not None]
    speed = options.training_speed.speed_at(options.preparation_share_milli)
    budget_gpu_s = us_to_seconds(options.preparation_us) * speed / options.doses
    part_gpu_s = budget_gpu_s / max(len(wanting), 1)
    mean_gpu_s = fmean(costs) if costs else part_gpu_s
    unseen, prospects = unseen_error(histories.values()), []
    for stream in wanting:
        history, cost = history_of(histories, stream.stream), stream.prepared_gpu_s
        drifted = stream.drifted_us is not None
        accuracy = None if stream.accuracy is None else accuracies[stream.stream]
        if stream.job is not None and accuracy is not None and not drifted:
            accuracy = max(accuracy, stream.job.outlook)
        until_us = stream.labels.until_us
        passed = None if until_us is None else (now_us - until_us) / options.window_us
        # What the others cost must not keep a stream from its first labels.
        usual_gpu_s = min(mean_gpu_s, part_gpu_s) if cost is None else mean_gpu_s
        prepare_gpu_s = usual_gpu_s if cost is None else cost
        if _profiles_inference(stream, fleet.window, needs) and costs:
            prepare_gpu_s += usual_gpu_s  # profiling λ costs about as much again
        prospect = Prospect(
            stream.stream,
            expected_gain(history, accuracy, fleet.window, drifted, unseen, passed),
            prepare_gpu_s,
            _retrain_gpu_s(history, usual_gpu_s),
        )
        prospects.append(prospect)
    best = best_investment(view, prospects, most, lambda milli: time_limit_us(milli, options))
    share_milli = best.share_milli if best.streams else most
    groups = options.training_groups
    # What an operator has asked for is prepared whether or not it pays.
    requested = (stream.stream for stream in wanting if stream.requested)
    return groups.floor_share(share_milli) if groups else share_milli, {*best.streams, *requested}


def _retrain_gpu_s(history: ProfileHistory, usual_gpu_s: float) -> float:
    """Returns what a stream's retraining may cost: as the last ones here, or as the cheapest γ was profiled.

    What other servers have retrained may be a γ that would be too expensive here.
    """
    measured = (one for one in history.observations if one.predicted_gain is not None)
    took = [one.gpu_s for one in measured if not one.elsewhere]
    return median(took) if took else min((one.gpu_s for one in history.observations), default=usual_gpu_s)


def _left_milli(view: WindowView, fleet: FleetState, options: LoopOptions) -> int:
    """Returns the largest share of a preparation: what inference leaves at its floors, at least δ.

    Without any share a stream whose inference needs the rest to reach a_MIN would never be retrained.
    """
    most = options.preparation_share_milli
    if options.homes:
        here = {stream for stream, gpu in homes_of(fleet, options).items() if gpu == PREPARATION_GPU}
        streams = tuple(stream for stream in view.streams if stream.stream in here)
        free_milli = free_milli_at_home(fleet, options)[PREPARATION_GPU]
        view = replace(view, streams=streams, capacity_milli=free_milli)
    share_milli = min(max(left_by_inference(view), options.quantum_milli), most)
    return options.training_groups.floor_share(share_milli) if options.training_groups else share_milli


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
    if not needs.micro_profile:
        return ()
    if needs.true_profile:
        return tuple(sorted({family_of(config) for config in options.retrain_configs}))
    return select_families(options.retrain_configs, history_of(histories, stream), fleet.window)
