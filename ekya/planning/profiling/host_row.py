"""The host as a second row of capacity: λ of all streams whose frames the host can cut and hand over.

A plan gives out shares of GPUs. On a GPU server the host may bind first: reading, cutting and launching take
cores. The λ that a plan may choose from are therefore those of an assignment that fits the host.
"""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from ekya.core.units import FULL_GPU_MILLI
from ekya.core.view import InferenceOption, StreamView


def fit_to_host(streams: Sequence[StreamView]) -> tuple[StreamView, ...]:
    """Returns the streams with the λ that the host can carry, whichever of them a plan chooses.

    Each stream begins with the λ that takes least; what is left goes where it gains most accuracy for the
    thousandth, by the weights of the streams. A stream keeps at least its cheapest λ.
    """
    ladders = [_ladder(stream) for stream in streams]
    steps = [0] * len(ladders)
    left = FULL_GPU_MILLI - sum(ladder[0].host_milli for ladder in ladders)
    queue: list[tuple[float, int]] = []
    for place, ladder in enumerate(ladders):
        if len(ladder) > 1:
            queue.append((-_worth(streams[place], ladder, 0), place))
    heapify(queue)
    while queue:
        _, place = heappop(queue)
        ladder, step = ladders[place], steps[place]
        more = ladder[step + 1].host_milli - ladder[step].host_milli
        if more > left:
            continue
        left, steps[place] = left - more, step + 1
        if step + 2 < len(ladder):
            heappush(queue, (-_worth(streams[place], ladder, step + 1), place))
    return tuple(
        _with_at_most(stream, ladder[step].host_milli)
        for stream, ladder, step in zip(streams, ladders, steps, strict=True)
    )


def _ladder(stream: StreamView) -> list[InferenceOption]:
    """Returns λ with rising part of the host and accuracy, each step worth less than the one before."""
    ladder: list[InferenceOption] = []
    by_cost = sorted(stream.inference_options, key=lambda one: (one.host_milli, -_accuracy(stream, one)))
    for option in by_cost:
        if ladder and _accuracy(stream, option) <= _accuracy(stream, ladder[-1]):
            continue
        while len(ladder) > 1 and _slope(stream, ladder[-1], option) >= _slope(stream, *ladder[-2:]):
            ladder.pop()
        ladder.append(option)
    return ladder


def _worth(stream: StreamView, ladder: Sequence[InferenceOption], step: int) -> float:
    return stream.weight * _slope(stream, ladder[step], ladder[step + 1])


def _slope(stream: StreamView, lower: InferenceOption, higher: InferenceOption) -> float:
    gained = _accuracy(stream, higher) - _accuracy(stream, lower)
    return gained / max(higher.host_milli - lower.host_milli, 1)


def _accuracy(stream: StreamView, option: InferenceOption) -> float:
    return option.accuracy_with(stream.accuracy)


def _with_at_most(stream: StreamView, host_milli: int) -> StreamView:
    options = tuple(one for one in stream.inference_options if one.host_milli <= host_milli)
    return (
        stream
        if len(options) == len(stream.inference_options)
        else replace(stream, inference_options=options)
    )
