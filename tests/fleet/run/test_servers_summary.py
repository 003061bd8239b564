"""Files of a run of several servers: summary, what its launcher must know, and loans."""

import pytest

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.lending import Made
from ekya.fleet.run.loan_file import UNDER_WAY, LoanFile, LoanRecord, read_loans
from ekya.fleet.run.servers_folder import LiveRun, RanServers, ServersFolder, summarise_servers

S = 1_000_000
NORTH, SOUTH, WEST = map(SiteName, ("north", "south", "west"))


def one(accuracies, frames):
    return {
        "world": "live",
        "scheduler": "ekya",
        "gpus": 1.0,
        "mean_accuracy": 0.5,
        "balanced_accuracy": 0.4,
        "retrainings": {"started": 2, "finished": 1},
        "frames": {"arrived": frames, "analysed": frames, "skipped": 0, "lost": 1},
        "streams": {
            f"cam-{number}": {"mean_accuracy": value, "gain": None, "more": "not taken over"}
            for number, value in enumerate(accuracies)
        },
    }


def test_streams_count_alike_on_whatever_server_they_are() -> None:
    ran = RanServers({NORTH: one([0.2, 0.4, None], 10), SOUTH: one([0.9], 5)})
    told = summarise_servers("town", "net", [NORTH, SOUTH], ran, ())
    assert told["mean_accuracy"] == 0.5
    assert told["gain"] is None
    assert told["frames"] == {"arrived": 15, "analysed": 15, "skipped": 0, "lost": 2}
    assert told["servers"][NORTH]["streams"]["cam-2"] == {"mean_accuracy": None, "gain": None}


def test_who_died_unmeasured_stands_there_without_an_accuracy() -> None:
    ran = RanServers({SOUTH: one([0.9], 5)}, {NORTH: 12.5, SOUTH: 20.0})
    told = summarise_servers("town", "net", [NORTH, SOUTH], ran, ())
    north, south = told["servers"][NORTH], told["servers"][SOUTH]
    assert (north["died_s"], north["mean_accuracy"], north["gpus"], north["streams"]) == (
        12.5,
        None,
        None,
        {},
    )
    assert (south["died_s"], south["mean_accuracy"]) == (20.0, 0.5)
    assert (told["world"], told["mean_accuracy"]) == ("live", 0.9)


def test_where_nobody_could_be_measured_there_is_a_summary_all_the_same() -> None:
    told = summarise_servers("town", None, [NORTH], RanServers(died_s={NORTH: 1.0}), ())
    assert (told["world"], told["mean_accuracy"], told["frames"]["arrived"]) == (None, None, 0)


def test_loans_are_counted_by_who_borrows_who_lends_and_how_they_ended() -> None:
    moved = {(NORTH, SOUTH): 46.0, (SOUTH, NORTH): 45.0}
    loans = (
        LoanRecord(NORTH, SOUTH, "arrived", moved, 10 * S, 14 * S, 15 * S, promises=3.5, came=2.25),
        LoanRecord(NORTH, SOUTH, "given up", {(NORTH, SOUTH): 1.5}, promises=1.0, came=0.0),
        LoanRecord(WEST, SOUTH, promises=9.0),
    )
    told = summarise_servers("town", "net", [NORTH, SOUTH, WEST], RanServers(), loans)
    assert told["loans"] == {
        "made": 3,
        "by_outcome": {"arrived": 1, "given up": 1, "under way": 1},
        "arrived_after_s": {"foreseen": 4.0, "was": 5.0},
        "gain": {"promised": 4.5, "came": 2.25},
    }
    counts = {site: (its["lends"], its["borrows"]) for site, its in told["servers"].items()}
    assert counts == {NORTH: (0, 2), SOUTH: (3, 0), WEST: (0, 1)}
    assert told["moved_mb"] == {
        "total": 92.5,
        "ways": [{"from": NORTH, "to": SOUTH, "mb": 47.5}, {"from": SOUTH, "to": NORTH, "mb": 45.0}],
    }


def test_what_a_launcher_must_know_is_read_as_it_was_written(tmp_path) -> None:
    live = LiveRun(
        "net", 3, "auto", 20.0, {NORTH: 4711, SOUTH: 4712}, 1_764_093_600.0, tmp_path / "stores.yaml"
    )
    live.save(tmp_path / "live.json")
    assert LiveRun.load(tmp_path / "live.json") == live
    (tmp_path / "live.json").write_text("{}")
    with pytest.raises(UserError, match=r"live\.json: cannot be read .* name the folder of a run"):
        LiveRun.load(tmp_path / "live.json")


def test_loans_of_services_stand_in_their_folders_and_those_of_stores_beside_them(tmp_path) -> None:
    for folder in (tmp_path, tmp_path / "north"):
        folder.mkdir(exist_ok=True)
        file = LoanFile(folder / "loans.jsonl")
        file(made(0))
        file.close()
    assert [one.host for one in ServersFolder(tmp_path).read_loans((NORTH, SOUTH))] == [EAST, EAST]


HOME, EAST = map(SiteName, ("home", "east"))


def made(number):
    config = RetrainConfig(4, 16, 0, 1, 1.0)
    offer = TrainingOffer(HOME, StreamId("Bähnli"), config, 4, 10.0, 0.1, 0.0, 0, 100 * S, 1.0, 45.0, 45.0)
    return Made(number, Loan(offer, EAST, 300, 5 * S, 30 * S, 40 * S, "it fits"))


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
        LoanRecord(HOME, EAST, "given up", moved, 0, 40 * S, 25 * S, promises=6.0),
        LoanRecord(HOME, EAST, UNDER_WAY, {}, 0, 40 * S, 0, promises=6.0),
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
    assert (second.host, second.arrives_us) == (EAST, 40 * S)
