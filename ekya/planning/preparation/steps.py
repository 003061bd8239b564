"""Order of the steps that prepare a window (paper §4.3), the same in every world."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ekya.core.commands import PrepareStream
from ekya.core.configs import InferenceConfig
from ekya.core.profile import Family
from ekya.core.state import StreamState
from ekya.core.units import StreamId
from ekya.planning.profiling.pruning import in_need


@dataclass(frozen=True, slots=True)
class LabelStep:
    """Labels a stream's sample with the golden model."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class InferenceStep:
    """Profiles these λ on a stream's burst."""

    stream: StreamId
    configs: tuple[InferenceConfig, ...]


@dataclass(frozen=True, slots=True)
class TrialStep:
    """Micro-profiles a family of γ on a stream's labels."""

    stream: StreamId
    family: Family


PreparationStep = LabelStep | InferenceStep | TrialStep


@dataclass(frozen=True, slots=True)
class Labelled:
    """Result of labelling a stream.

    Attributes:
        accuracy: of the serving model on the validation part.
        can_train: whether both parts are large enough to train and to measure.
    """

    accuracy: float
    can_train: bool


def next_prepared(streams: Sequence[StreamState], places: int) -> tuple[StreamId, ...]:
    """Returns the streams to prepare in a window that has no time for all.

    Half of the places, rounded up, go to those that have waited longest, so that each is prepared in turn;
    the others to those that do worst, if they do badly enough to be in need.
    """
    longest = sorted(
        streams,
        key=lambda one: (
            -1 if one.prepared_in is None else one.prepared_in,
            -1.0 if one.accuracy is None else one.accuracy,
            one.stream,
        ),
    )
    first = longest[: -(-places // 2)]
    others = {one.stream: one.accuracy for one in longest[len(first) :] if one.accuracy is not None}
    worst = in_need(others)[: places - len(first)]
    chosen = [*(one.stream for one in first), *worst]
    rest = [one.stream for one in longest if one.stream not in chosen]
    return tuple([*chosen, *rest][:places])


def preparation_steps(
    streams: Sequence[PrepareStream], labelled: Mapping[StreamId, Labelled]
) -> Iterator[PreparationStep]:
    """Yields labels of all streams, one family of γ for those in need, λ of all, then the other families.

    Before these come λ of streams of which they are to be first.

    Steps that are unfinished when the time is up are not done, so the most valuable come first: without
    labels and one family a stream cannot retrain at all, and the first family is the cheapest; λ has priors.
    No stream has its second family tried before another has its first.

    Args:
        streams: what to measure of each.
        labelled: filled in by the caller while it carries the steps out, and read only when all labels are
            made; a stream that could not be labelled, but was to be, is missing and gets no further steps.
    """
    for of in streams:
        if of.inference_first:
            yield InferenceStep(of.stream, of.inference)
    for of in streams:
        if of.labels:
            yield LabelStep(of.stream)
    families = {of.stream: of.families for of in streams}
    accuracies = {stream: known.accuracy for stream, known in labelled.items() if known.can_train}
    needy = in_need(accuracies)
    yield from _trials(needy, families, 0)
    for of in streams:
        if of.inference and not of.inference_first and of.stream in labelled:
            yield InferenceStep(of.stream, of.inference)
    for rank in range(1, max((len(families[stream]) for stream in needy), default=1)):
        yield from _trials(needy, families, rank)


def _trials(
    needy: Sequence[StreamId], families: Mapping[StreamId, Sequence[Family]], rank: int
) -> Iterator[TrialStep]:
    for stream in needy:
        if rank < len(families[stream]):
            yield TrialStep(stream, families[stream][rank])
