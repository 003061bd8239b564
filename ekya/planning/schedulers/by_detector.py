"""Splits streams by the detector that answers: under the golden one no γ is worth anything.

A planner that looks for courses of a window multiplies what γ and λ are worth (``objective.py``). So it is
given each stream with the λ of one detector only.
"""

from dataclasses import replace

from ekya.core.plan import Phase
from ekya.core.view import StreamView, WindowView


def offers_golden(view: WindowView) -> bool:
    """Returns whether a λ of any stream is of the golden detector."""
    return any(option.config.by_golden for stream in view.streams for option in stream.inference_options)


def split_by_detector(view: WindowView, phase: Phase) -> WindowView:
    """Returns the view in which each stream has the λ of one detector, the one that answers it in a phase.

    A stream that retrains keeps those of its edge model, even if the golden detector answers meanwhile.
    """
    given = zip(view.streams, phase.assignments, strict=True)
    streams = [
        _of_one(stream, one.inference.by_golden and not one.retrain_share_milli) for stream, one in given
    ]
    return replace(view, streams=tuple(streams))


def _of_one(stream: StreamView, by_golden: bool) -> StreamView:
    options = tuple(one for one in stream.inference_options if one.config.by_golden == by_golden)
    if not by_golden:
        return replace(stream, inference_options=options)
    # The golden detector is right by definition.
    return replace(stream, accuracy=1.0, inference_options=options, retrain_options=())
