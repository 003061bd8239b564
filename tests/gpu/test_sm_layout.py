import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.gpu.green.sm_layout import SmLayout, SmSpan, coarsest, place_again, quantise_sms

H200 = SmLayout(8, 16, 4)
A100 = SmLayout(2, 54)

ONE_LAYOUT = st.sampled_from((2, 4, 8)).flatmap(
    lambda step: st.builds(SmLayout, st.just(step), st.integers(1, 72), st.integers(0, step - 1))
)
LAYOUTS = st.lists(ONE_LAYOUT, min_size=1, max_size=4)
SHARES = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 1500), max_size=12)


@given(SHARES, LAYOUTS)
def test_layout_spans_lie_on_their_gpu_without_overlap(shares, layouts):
    granted = quantise_sms(shares, layouts)
    taken = set()
    for span in granted.spans.values():
        groups = {(span.gpu, group) for group in range(span.first, span.end)}
        assert groups and not groups & taken
        assert span.end <= layouts[span.gpu].groups
        taken |= groups


@given(SHARES, LAYOUTS)
def test_layout_grant_is_whole_steps_within_request_and_capacity(shares, layouts):
    granted = quantise_sms(shares, layouts)
    step = coarsest(layouts)
    assert granted.share_milli.keys() == shares.keys()
    assert granted.spans.keys() == {job for job, share in granted.share_milli.items() if share > 0}
    for job, share in granted.share_milli.items():
        assert share == 0 or share == step.floor_share(share) >= step.share_milli(1)
        assert 0 <= share <= min(shares[job], 1000)
    # Each share is rounded up to a whole thousandth, and together they pay for no more than there is.
    assert sum(max(share - 1, 0) for share in granted.share_milli.values()) <= 1000 * len(layouts)
    for job, span in granted.spans.items():
        # A span has the groups that its share pays for, or one less on a grouping finer than the coarsest.
        pays = layouts[span.gpu].groups_for(granted.share_milli[job])
        assert pays - (layouts[span.gpu].grouping != step) <= span.groups <= pays


@given(SHARES, LAYOUTS)
def test_layout_order_of_jobs_does_not_matter(shares, layouts):
    turned = dict(reversed(shares.items()))
    assert quantise_sms(shares, layouts) == quantise_sms(turned, layouts)


@given(SHARES, LAYOUTS)
def test_layout_every_request_gets_a_step_if_possible(shares, layouts):
    step = coarsest(layouts)
    asking = [job for job, share in shares.items() if share >= step.share_milli(1)]
    room = sum(step.groups_for(layout.grouping.share_milli(layout.groups)) for layout in layouts)
    granted = quantise_sms(shares, layouts)
    assert len(granted.spans) == min(len(asking), room)
    assert granted.spans.keys() <= set(asking)


@given(SHARES, ONE_LAYOUT)
def test_layout_one_gpu_loses_only_rounding(shares, layout):
    wanted = {job: layout.groups_for(share) for job, share in shares.items()}
    granted = quantise_sms(shares, [layout])
    got = {job: granted.spans[job].groups if job in granted.spans else 0 for job in shares}
    if sum(wanted.values()) <= layout.groups:
        assert got == wanted
    else:
        # All groups are given out, and no job is a whole group below its proportional part.
        assert sum(got.values()) == layout.groups
        part = layout.groups / sum(wanted.values())
        assert all(got[job] > min(wanted[job] * part, 1) - 1 for job in shares)


@pytest.mark.parametrize(
    ("layout", "sms", "step"), [(H200, 132, 61), (A100, 108, 19), (SmLayout(2, 66), 132, 16)]
)
def test_layout_full_share_is_every_sm(layout, sms, step):
    granted = quantise_sms({"a": 1000}, [layout])
    assert layout.sms_of(granted.spans["a"].first, granted.spans["a"].groups) == sms
    assert layout.grouping.share_milli(1) == step


def test_layout_h200_splits_three_quarters_and_one_without_loss():
    granted = quantise_sms({"a": 740, "b": 260}, [H200])
    assert {job: H200.sms_of(span.first, span.groups) for job, span in granted.spans.items()} == {
        "a": 100,
        "b": 32,
    }


def test_layout_large_jobs_get_own_gpus_and_are_cut_to_fit():
    granted = quantise_sms({"a": 700, "b": 700, "c": 600}, [H200, H200])
    spans = granted.spans
    assert {spans["a"].gpu, spans["b"].gpu} == {0, 1}
    assert granted.share_milli == {"a": 667, "b": 667, "c": 304}


TAKEN = st.lists(st.booleans(), min_size=1, max_size=24)


@given(TAKEN, st.integers(1, 24))
def test_layout_new_job_takes_fitting_or_largest_gap(taken, groups):
    gaps = "".join("x" if one else "." for one in taken).split("x")
    span = place_again(taken, groups, None)
    largest = max(len(gap) for gap in gaps)
    if largest == 0:
        assert span is None
    else:
        assert span.groups == min(groups, largest)
        assert not any(taken[span.first : span.end])


@given(TAKEN, st.integers(1, 24), st.data())
def test_layout_growing_job_never_loses_and_stays_in_place(taken, groups, data):
    first = data.draw(st.integers(0, len(taken) - 1))
    end = data.draw(st.integers(first + 1, len(taken)))
    taken[first:end] = [False] * (end - first)
    held = SmSpan(1, first, end - first)
    span = place_again(taken, groups, held)
    assert span.gpu == 1
    assert not any(taken[span.first : span.end])
    assert min(groups, held.groups) <= span.groups <= max(groups, held.groups)
    if groups <= held.groups:
        assert first <= span.first and span.end <= end
    elif span.first > first or span.end < end:
        # The span moved, so it did not fit where it was.
        assert not (span.first <= first and end <= span.end)


def test_layout_second_job_starts_at_the_end():
    assert place_again([True] * 4 + [False] * 12, 4, None) == SmSpan(0, 12, 4)
    assert place_again([False] * 16, 4, None) == SmSpan(0, 0, 4)
