from hypothesis import given
from hypothesis import strategies as st

from ekya.profiling.gate import why_not

part = st.integers(0, 20).map(lambda twentieths: twentieths / 20)


@given(part, part, part)
def test_only_what_is_worse_by_more_than_the_margin_is_kept_back(
    new: float, old: float, margin: float
) -> None:
    kept_back = why_not(new, old, margin) is not None
    assert kept_back == (new == 0.0 or new < old - margin)


@given(part, part, part, part)
def test_a_wider_margin_keeps_back_no_more(new: float, old: float, margin: float, more: float) -> None:
    if why_not(new, old, margin) is None:
        assert why_not(new, old, margin + more) is None


def test_the_reason_tells_both_accuracies_and_the_margin_that_was_passed() -> None:
    assert why_not(0.5, 0.75, 0.0) == (
        "the new weights get 50.0% of the newest labels right, and those that serve 75.0%"
    )
    assert (why_not(0.5, 0.75, 0.1) or "").endswith("which is more than 10.0% worse")
    assert "nothing" in (why_not(0.0, 0.0, 0.5) or "")
