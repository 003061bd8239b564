import subprocess
import sys
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.errors import UserError
from ekya.gpu.green.claims import SmClaims, SmSpan, claims_folder, place_again

GROUPS = 16


@pytest.fixture
def open_claims(tmp_path):
    opened = []

    def open_one():
        opened.append(SmClaims(tmp_path / "gpu", GROUPS))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def test_claims_group_belongs_to_one_job_in_a_process(open_claims):
    one, other = open_claims(), open_claims()
    assert one.claim_groups(0, 4)
    assert not other.claim_groups(3, 4)
    assert other.claim_groups(4, 4)
    assert other.taken() == (True,) * 4 + (False,) * 12
    assert one.taken() == (False,) * 4 + (True,) * 4 + (False,) * 8


def test_claims_failed_claim_takes_nothing(open_claims):
    one, other = open_claims(), open_claims()
    one.claim_groups(8, 1)
    assert not other.claim_groups(0, 16)
    assert one.taken() == (False,) * 16


def test_claims_released_groups_are_free_and_others_held(open_claims):
    one, other = open_claims(), open_claims()
    one.claim_groups(2, 8)
    one.keep_only(4, 2)
    assert other.taken() == (False,) * 4 + (True,) * 2 + (False,) * 10
    one.give_back()
    assert other.claim_groups(0, GROUPS)


def test_claims_growing_job_extends_its_groups(open_claims):
    one = open_claims()
    assert one.claim_groups(2, 2)
    assert one.claim_groups(0, 6)


def test_claims_killed_process_frees_its_groups(tmp_path, open_claims):
    code = (
        "import sys; from pathlib import Path; from ekya.gpu.green.claims import SmClaims as Claims; "
        f"claims = Claims(Path(sys.argv[1]), {GROUPS}); print(claims.claim_groups(0, 8), flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "gpu")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout.readline() == "True\n"
        mine = open_claims()
        assert not mine.claim_groups(7, 1)
        other.kill()
    assert mine.claim_groups(0, GROUPS)


def test_claims_folder_not_private_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = claims_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert claims_folder() == folder
    folder.chmod(0o777)
    with pytest.raises(UserError, match="only you may enter"):
        claims_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(UserError, match="only you may enter"):
        claims_folder()


def test_claims_guests_share_first_group_and_free_ones(open_claims):
    guest, other, owner = open_claims(), open_claims(), open_claims()
    assert guest.keep_for_guests() and other.keep_for_guests()
    assert owner.taken() == (True,) + (False,) * 15
    assert guest.free_for_guests() == GROUPS
    owner.claim_groups(12, 2)
    owner.claim_groups(5, 2)
    assert guest.free_for_guests() == other.free_for_guests() == 5
    guest.give_back()
    assert not owner.claim_groups(0, 1)
    other.give_back()
    assert owner.claim_groups(0, 1)
    assert not guest.keep_for_guests()
    assert guest.free_for_guests() == 0


TAKEN = st.lists(st.booleans(), min_size=1, max_size=24)


@given(TAKEN, st.integers(1, 24))
def test_placement_new_job_takes_fitting_or_largest_gap(taken, groups):
    gaps = "".join("x" if one else "." for one in taken).split("x")
    span = place_again(taken, groups, None)
    largest = max(len(gap) for gap in gaps)
    if largest == 0:
        assert span is None
    else:
        assert span.groups == min(groups, largest)
        assert not any(taken[span.first : span.first + span.groups])


@given(TAKEN, st.integers(1, 24), st.data())
def test_placement_growing_job_never_loses_and_stays_in_place(taken, groups, data):
    first = data.draw(st.integers(0, len(taken) - 1))
    end = data.draw(st.integers(first + 1, len(taken)))
    taken[first:end] = [False] * (end - first)
    held = SmSpan(first, end - first)
    span = place_again(taken, groups, held)
    assert not any(taken[span.first : span.first + span.groups])
    assert min(groups, held.groups) <= span.groups <= max(groups, held.groups)
    span_end = span.first + span.groups
    if groups <= held.groups:
        assert first <= span.first and span_end <= end
    elif span.first > first or span_end < end:
        # The span moved, so it did not fit where it was.
        assert not (span.first <= first and end <= span_end)


def test_placement_second_job_starts_at_the_end():
    assert place_again([True] * 4 + [False] * 12, 4, None) == SmSpan(12, 4)
    assert place_again([False] * 16, 4, None) == SmSpan(0, 4)


def test_placement_shrinking_job_at_the_end_of_the_gpu_leaves_first_groups_to_guests():
    guests = [True] + [False] * 14
    for groups in range(1, 14):
        assert place_again(guests, groups, SmSpan(1, 14)) == SmSpan(15 - groups, groups)
    assert place_again([False] * 14 + [True], 2, SmSpan(1, 13)) == SmSpan(1, 2)
