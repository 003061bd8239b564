"""Stores of ``ekya fleet run``: their files, and the updates that a run makes of them."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from ekya.cli.command import Output
from ekya.system.token_file import make_token_file, read_token_file

if TYPE_CHECKING:
    from ekya.core.units import StreamId
    from ekya.fleet.run.live.launched_servers import LaunchedServers
    from ekya.fleet.run.servers_folder import ServersFolder
    from ekya.fleet.run.stores.folder_store import FolderStore
    from ekya.fleet.run.stores.updates import StoreUpdates


@dataclass(frozen=True, slots=True)
class RestOptions:
    """Where updates are ordered over REST.

    Attributes:
        host, port: to listen at; others than this machine need the token in the run's folder.
    """

    host: str
    port: int


@contextmanager
def open_updates(
    stores: "Mapping[StreamId, FolderStore]",
    folder: "ServersFolder",
    launched: "LaunchedServers",
    rest: RestOptions,
    output: Output,
) -> "Iterator[StoreUpdates | None]":
    """Opens the updates of a run's stores and their REST endpoints; None without stores."""
    if not stores:
        yield None
        return
    from ekya.fleet.policy.places import STORES
    from ekya.fleet.policy.registry import TIERS
    from ekya.fleet.run.live.lender import lenders_of
    from ekya.fleet.run.live.own_coordinator import OwnCoordinator
    from ekya.fleet.run.stores.rest import application
    from ekya.fleet.run.stores.update_book import UpdateBook
    from ekya.fleet.run.stores.updates import StoreUpdates
    from ekya.system.http_thread import HttpThread

    book = UpdateBook(stores, folder.updates)
    lenders = lenders_of(launched.lenders(), lambda: book.now_us)
    updates = StoreUpdates(
        book, OwnCoordinator(STORES, lenders, TIERS[launched.tier], 0, folder.loans, lambda: book.now_us)
    )
    token = None if _is_loopback(rest.host) else _token(folder.path / "token")
    with (
        closing(updates),
        closing(HttpThread(application(book, updates, token), rest.host, rest.port, "rest")) as served,
    ):
        output.print_text(f"Updates of {', '.join(stores)} are ordered at http://{rest.host}:{served.port}")
        yield updates


def read_stores_of_file(stores: Path | None) -> "dict[StreamId, FolderStore]":
    """Returns the stores of a file; none without one."""
    if stores is None:
        return {}
    from ekya.fleet.run.stores.folder_store import read_stores

    return read_stores(stores)


def _token(path: Path) -> str:
    if not path.exists():
        make_token_file(path)
    return read_token_file(path, "remove the file for a new one")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
