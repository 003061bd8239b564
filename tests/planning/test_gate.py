from hypothesis import given
from hypothesis import strategies as st

from ekya.core.units import StreamId
from ekya.core.weights import Compared
from ekya.planning.adaptation.shadow_gate import (
    ADOPT_MARGIN,
    LEAST_OBJECTS,
    MOST_TRIED,
    tried_by,
    why_adopted,
    why_back,
    why_not,
)

part = st.integers(0, 20).map(lambda twentieths: twentieths / 20)


@given(part, part, part)
def test_why_not_beyond_margin_refuses(new: float, old: float, margin: float) -> None:
    kept_back = why_not(new, old, margin) is not None
    assert kept_back == (new == 0.0 or new < old - margin)


@given(part, part, part, part)
def test_why_not_with_wider_margin_refuses_no_more(
    new: float, old: float, margin: float, more: float
) -> None:
    if why_not(new, old, margin) is None:
        assert why_not(new, old, margin + more) is None


def test_why_not_names_accuracies_and_margin() -> None:
    assert why_not(0.5, 0.75, 0.0) == (
        "the new weights get 50.0% of the newest labels right, and those that serve 75.0%"
    )
    assert (why_not(0.5, 0.75, 0.1) or "").endswith("which is more than 10.0% worse")
    assert "nothing" in (why_not(0.0, 0.0, 0.5) or "")


@given(part, part, part, st.integers(0, 20))
def test_why_back_needs_enough_objects_and_margin(
    new: float, old: float, margin: float, objects: int
) -> None:
    goes_back = why_back(Compared(new, old, objects), margin) is not None
    assert goes_back == (objects >= LEAST_OBJECTS and new < old - margin)


def test_why_back_names_objects_and_accuracies() -> None:
    assert why_back(Compared(0.25, 0.75, 16), 0.1) == (
        "of 16 objects labelled since, the new weights get 25.0% right, and those before them 75.0%"
    )


@given(part, part, st.integers(0, 20))
def test_why_adopted_needs_enough_objects_and_a_clear_gain(new: float, old: float, objects: int) -> None:
    adopted = why_adopted(Compared(new, old, objects)) is not None
    assert adopted == (objects >= LEAST_OBJECTS and new > old + ADOPT_MARGIN)


def test_why_adopted_names_objects_and_accuracies() -> None:
    assert why_adopted(Compared(0.75, 0.25, 16)) == (
        "of 16 labelled objects, they get 75.0% right, and the base model 25.0%"
    )


names = st.sampled_from([StreamId(name) for name in "abcdefghijk"])


@given(st.dictionaries(names, st.booleans(), min_size=1), st.integers(0, 9))
def test_tried_by_takes_retrained_weights_of_others_for_a_stream_with_the_base(
    has_base: dict[StreamId, bool], window: int
) -> None:
    with_base = {stream for stream, has in has_base.items() if has}
    retrained = set(has_base) - with_base
    for stream in has_base:
        tried = tried_by(stream, has_base, with_base, window)
        if stream in retrained:
            assert tried == ()
        else:
            assert len(set(tried)) == len(tried) == min(len(retrained), MOST_TRIED)
            assert set(tried) <= retrained


def test_tried_by_takes_all_in_turn() -> None:
    streams = [StreamId(name) for name in "abcdefghij"]
    tried = [tried_by(streams[0], streams, streams[:1], window) for window in (1, 2)]
    assert set(tried[0]) | set(tried[1]) == set(streams[1:])
