"""Summary of several servers, also where some died before they were measured."""

from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.loan_file import LoanRecord
from ekya.fleet.run.servers_folder import RanServers, summarise_servers

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
        LoanRecord(NORTH, (SOUTH,), "arrived", moved, 10 * S, 14 * S, 15 * S, promises=3.5, came=2.25),
        LoanRecord(NORTH, (SOUTH, WEST), "given up", {(NORTH, SOUTH): 1.5}, promises=1.0, came=0.0),
        LoanRecord(WEST, (SOUTH,), promises=9.0),
    )
    told = summarise_servers("town", "net", [NORTH, SOUTH, WEST], RanServers(), loans)
    assert told["loans"] == {
        "made": 3,
        "by_outcome": {"arrived": 1, "given up": 1, "under way": 1},
        "arrived_after_s": {"foreseen": 4.0, "was": 5.0},
        "gain": {"promised": 4.5, "came": 2.25},
    }
    counts = {site: (its["lends"], its["borrows"]) for site, its in told["servers"].items()}
    assert counts == {NORTH: (0, 2), SOUTH: (3, 0), WEST: (1, 1)}
    assert told["moved_mb"] == {
        "total": 92.5,
        "ways": [{"from": NORTH, "to": SOUTH, "mb": 47.5}, {"from": SOUTH, "to": NORTH, "mb": 45.0}],
    }
