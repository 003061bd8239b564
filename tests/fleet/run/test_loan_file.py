"""`loans.jsonl`: reading returns what was written, even if the writer died."""

import pytest

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Loan, LoanPart
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.lending import Made
from ekya.fleet.run.loan_file import UNDER_WAY, LoanFile, LoanRecord, read_loans

S = 1_000_000
HOME, EAST, WEST = map(SiteName, ("home", "east", "west"))


def made(number):
    config = RetrainConfig(4, 16, 0, 1, 1.0)
    offer = TrainingOffer(
        HOME, StreamId("Bähnli"), config, 4, 10.0, 0.1, 0.0, 0, 100 * S, 300, 1.0, 45.0, 0.1, 45.0
    )
    parts = (LoanPart(EAST, 300, 0.25), LoanPart(WEST, 200, 0.75))
    return Made(number, Loan(offer, parts, EAST, 5 * S, 30 * S, 40 * S, {}, "it fits"))


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "loans.jsonl"
    file = LoanFile(path)
    first, second = made(0), made(1)
    for one in (first, second):
        file(one)
    first.outcome, first.over_us, first.moved_mb = "given up", 25 * S, {(HOME, EAST): 46.0}
    file(first)
    first.moved_mb = {(HOME, EAST): 46.0, (EAST, HOME): 45.5}  # moved since then
    file(first)
    file.close()
    return path


def test_a_loan_has_its_last_word_and_one_that_nobody_ended_is_under_way(written) -> None:
    moved = {(HOME, EAST): 46.0, (EAST, HOME): 45.5}
    assert read_loans(written) == (
        LoanRecord(HOME, (EAST, WEST), "given up", moved, 0, 40 * S, 25 * S, promises=6.0),
        LoanRecord(HOME, (EAST, WEST), UNDER_WAY, {}, 0, 40 * S, 0, promises=6.0),
    )


def test_wherever_the_last_line_is_cut_off_the_lines_before_it_count(written) -> None:
    whole = written.read_bytes()
    *_, last = whole.splitlines(keepends=True)
    for cut in range(1, len(last)):
        written.write_bytes(whole[: len(whole) - cut])
        first, second = read_loans(written)
        # Only the newline is cut off: the last line is complete.
        assert len(first.moved_mb) == (2 if cut == 1 else 1)
        assert second.outcome == UNDER_WAY


def test_a_cut_in_the_very_first_line_leaves_no_loans(written) -> None:
    first, *_ = written.read_bytes().splitlines(keepends=True)
    for size in range(len(first) - 1):
        written.write_bytes(first[:size])
        assert read_loans(written) == ()


@pytest.mark.parametrize("bad", [b'{"loan": 0, "outc', b'{"loan": 7, "outcome": "", "moved": []}', b"7"])
def test_a_damaged_line_before_the_last_is_told_with_its_number(bad, written) -> None:
    lines = written.read_bytes().splitlines()
    written.write_bytes(b"\n".join([*lines[:1], bad, *lines[1:]]))
    with pytest.raises(UserError, match=r"loans\.jsonl: line 2 is damaged"):
        read_loans(written)


def test_where_nobody_agreed_on_anything_there_are_none(tmp_path) -> None:
    assert read_loans(tmp_path / "loans.jsonl") == ()
    LoanFile(tmp_path / "loans.jsonl").close()
    assert read_loans(tmp_path / "loans.jsonl") == ()


def test_wherever_the_last_line_is_cut_off_a_new_writer_goes_on_in_a_line_of_its_own(written) -> None:
    whole = written.read_bytes()
    *before, last = whole.splitlines(keepends=True)
    for cut in range(len(last)):
        written.write_bytes(whole[: len(whole) - cut])
        file = LoanFile(written)
        assert written.read_bytes() == (b"".join(before) if cut else whole), "whole lines are kept"
        file(made(2))
        file.close()
        first, second, third = read_loans(written)
        assert len(first.moved_mb) == (1 if cut else 2)
        assert (second.outcome, third.outcome) == (UNDER_WAY, UNDER_WAY)


def test_a_new_writer_of_a_file_that_is_one_cut_line_begins_it_anew(written) -> None:
    first, *_ = written.read_bytes().splitlines(keepends=True)
    written.write_bytes(first[:-1])
    file = LoanFile(written)
    file(made(0))
    file.close()
    assert written.read_bytes() == first


def test_a_loan_of_which_nobody_knows_any_more_is_lost_and_no_other(written) -> None:
    file = LoanFile(written)
    file.record_lost(1)
    file.close()
    first, second = read_loans(written)
    assert (first.outcome, first.over_us) == ("given up", 25 * S)
    assert (second.outcome, second.over_us, second.moved_mb) == ("lost with the coordinator", 0, {})
    assert (second.hosts, second.arrives_us) == ((EAST, WEST), 40 * S)
