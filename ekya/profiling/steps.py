"""The order in which a window is prepared (paper §4.3): decided here, carried out in every world."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ekya.core.commands import PrepareStream
from ekya.core.configs import InferenceConfig
from ekya.core.ids import StreamId
from ekya.core.profile import Family
from ekya.profiling.pruning import in_need


@dataclass(frozen=True, slots=True)
class LabelStep:
    """Let the golden model label a stream's sample."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class InferenceStep:
    """Profile these λ on a stream's burst."""

    stream: StreamId
    configs: tuple[InferenceConfig, ...]


@dataclass(frozen=True, slots=True)
class TrialStep:
    """Micro-profile a family of γ on a stream's labels."""

    stream: StreamId
    family: Family


PreparationStep = LabelStep | InferenceStep | TrialStep


@dataclass(frozen=True, slots=True)
class Labelled:
    """What labelling showed of a stream.

    Attributes:
        accuracy: of the serving model on the validation part.
        can_train: both parts hold enough to train and to measure.
    """

    accuracy: float
    can_train: bool


def preparation_steps(
    streams: Sequence[PrepareStream], labelled: Mapping[StreamId, Labelled]
) -> Iterator[PreparationStep]:
    """Labels of all streams, then λ of all, then γ of those in need, the family worth most first.

    Whatever is unfinished when the time is up stays undone, so what every stream needs comes first, and
    no stream has its second family tried before another has its first.

    Args:
        streams: what to measure of each.
        labelled: filled in by whoever carries the steps out, and read only when all labels are made; a
            stream that could not be labelled is missing, and nothing more is done for it.
    """
    for of in streams:
        yield LabelStep(of.stream)
    for of in streams:
        if of.inference and of.stream in labelled:
            yield InferenceStep(of.stream, of.inference)
    families = {of.stream: of.families for of in streams}
    accuracies = {stream: known.accuracy for stream, known in labelled.items() if known.can_train}
    needy = in_need(accuracies)
    for rank in range(max((len(families[stream]) for stream in needy), default=0)):
        for stream in needy:
            if rank < len(families[stream]):
                yield TrialStep(stream, families[stream][rank])
