"""Retraining several streams at once (ECCO): where their labels show the same, one retraining may serve all.

A retraining whose labels are pooled learns from those of its partners as well. So each partner expects of it
what it would expect of a retraining of its own with the same γ, for none of the cost. In the view with joint
retrainings the gains of the partners, by their weights, are added to those of the stream that is retrained,
and the partners are offered no γ. A scheduler plans it like any other view, and the objective says whether
it gains over retraining each stream alone.
"""

from collections.abc import Mapping
from dataclasses import replace

from ekya.core.configs import RetrainConfig
from ekya.core.units import StreamId
from ekya.core.view import Objective, RetrainOption, StreamView, WindowView

Groups = Mapping[StreamId, tuple[StreamId, ...]]
"""By stream that is retrained, those that are retrained together with it."""


def ways_to_retrain(view: WindowView) -> tuple[WindowView, ...]:
    """Returns the view with each stream retrained alone, and, where streams may be retrained together, that.

    Joint retrainings that run already are joint in both, and their partners wait for them.
    """
    jobs = {one.stream: one.running for one in view.streams if one.running is not None}
    running = {stream: job.partners for stream, job in jobs.items() if job.partners}
    new = _groups(view, running) if view.objective is Objective.MEAN else {}
    alone = _grouped(view, running)
    return (alone, _grouped(view, {**running, **new})) if new else (alone,)


def _groups(view: WindowView, running: Groups) -> Groups:
    """Returns groups of streams that are each other's partners and may be retrained.

    Of each group the stream is retrained that expects most of it.
    """
    waiting = {one for partners in running.values() for one in partners}
    free = {one.stream: one for one in view.streams if one.retrain_options and one.stream not in waiting}
    groups: dict[StreamId, tuple[StreamId, ...]] = {}
    for stream in sorted(free.values(), key=lambda one: (-_best_gain(one), one.stream)):
        partners = tuple(one for one in stream.partners if one in free) if stream.stream in free else ()
        if partners:
            groups[stream.stream] = partners
            for one in (stream.stream, *partners):
                del free[one]
    return groups


def _best_gain(stream: StreamView) -> float:
    return max(option.accuracy_after for option in stream.retrain_options) - stream.accuracy


def _grouped(view: WindowView, groups: Groups) -> WindowView:
    known = {one.stream: one for one in view.streams}
    served_by = {partner: stream for stream, partners in groups.items() for partner in partners}
    streams = []
    for stream in view.streams:
        partners = [known[one] for one in groups.get(stream.stream, ()) if one in known]
        running = stream.running
        streams.append(
            replace(
                stream,
                partners=tuple(one.stream for one in partners),
                served_by=served_by.get(stream.stream),
                retrain_options=()
                if stream.stream in served_by
                else tuple(_for_all(option, stream, partners) for option in stream.retrain_options),
                running=running and replace(running, option=_for_all(running.option, stream, partners)),
            )
        )
    return replace(view, streams=tuple(streams))


def _for_all(option: RetrainOption, stream: StreamView, partners: list[StreamView]) -> RetrainOption:
    """Returns a γ of a stream with what its partners gain by it."""
    gain = sum(one.weight * _gain(one, option.config) for one in partners) / stream.weight
    if gain == 0.0:
        return option
    own = max(option.accuracy_after, stream.accuracy)
    return replace(option, accuracy_after=own + gain, partners_gain=gain)


def _gain(stream: StreamView, config: RetrainConfig) -> float:
    """Returns what a stream expects of a γ; nothing where it has no estimate of it."""
    known = (one.accuracy_after for one in stream.retrain_options if one.config == config)
    return max(next(known, stream.accuracy) - stream.accuracy, 0.0)
