"""A service of which another one borrows, as that one reaches it: by the routes of its HTTP API."""

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from io import BytesIO
from socket import gaierror
from ssl import create_default_context
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from ekya import __version__
from ekya.config.fleet_sections import LenderConfig
from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.lending import Lent, LoanId
from ekya.fleet.run.training.bundle_file import digest_of
from ekya.fleet.run.training.protocol import CallError, GoneError, LentProgress
from ekya.streams.ingest.credentials import fill_in_url

_LOG = logging.getLogger(__name__)

LENDING = "/api/v1/lending"
"""Path of the routes for lending."""

VERSION_HEADER = "Ekya-Version"
"""Header of every request, since services of two versions may understand different things."""

DIGEST_HEADER = "Ekya-Sha256"
"""Header with the SHA-256 of a training that is sent."""

ANSWERS_WITHIN_S = 5.0
"""Timeout of a step of a request: to connect, or for the next bytes."""

TAKES_WITHIN_S = 60.0
"""The same for a training, which the other service writes to its disk."""

_ROOM: TypeAdapter[Room | None] = TypeAdapter(Room | None)
_PROGRESS = TypeAdapter(LentProgress)


def lenders_of(configs: Sequence[LenderConfig], now_us: Callable[[], int]) -> "list[Lender]":
    """Returns the services of which this process borrows from now on."""
    borrower = uuid4().hex[:16]
    return [Lender(config, borrower, now_us) for config in configs]


class Lender:
    """Another service: it ``Lends``, and is a ``TrainingHost``. Thread-safe.

    Args:
        config: where it is.
        borrower: id of the service that asks.
        now_us: run time of that.

    Attributes:
        site: its name here.
        mb_s: rate of the link to it, in megabytes a second.
    """

    def __init__(self, config: LenderConfig, borrower: str, now_us: Callable[[], int]) -> None:
        self.site, self.mb_s, self._config = SiteName(config.site), config.mb_s, config
        self._borrower, self._now_us = borrower, now_us
        self._begun: set[str] = set()
        self._lock = threading.Lock()
        self._said = ""
        self._ends = ThreadPoolExecutor(1, thread_name_prefix=f"ends at {self.site}")

    def loan_id(self, number: LoanId) -> str:
        """Returns the id of a loan there."""
        return f"{self._borrower}-{number}"

    def spare_room(self, now_us: int, until_us: int) -> Room | None:
        """Returns what it could lend; None where it is not reached, which is said once."""
        query = urlencode({"borrower": self._borrower, "left_us": max(until_us - now_us, 0)})
        try:
            room = _checked(_ROOM, self._call("GET", f"room?{query}"))
            said = ""
        except CallError as error:
            room, said = None, str(error)
        if said != self._said:
            self._said = said
            _LOG.warning("%s", said or f"{self.site} is reached again")
        # It does not know its name here.
        return None if room is None else Room(self.site, room.step_milli, room.loss, room.speed)

    def lend_share(self, number: LoanId, lent: Lent) -> bool:
        """Asks for a share; returns whether it is lent."""
        told = {"share_milli": lent.share_milli, "lasts_us": max(lent.to_us - self._now_us(), US_PER_S)}
        try:
            self._call("PUT", f"loans/{self.loan_id(number)}", json.dumps(told).encode())
        except CallError as error:
            _LOG.warning("%s", error)
            return False
        return True

    def take_back_share(self, number: LoanId, at_us: int) -> None:
        """Ends a loan whose training has not begun; one that has begun ends with ``end_training``."""
        loan = self.loan_id(number)
        with self._lock:
            begun = loan in self._begun
        if not begun:
            self.end_training(loan)

    def begin_training(self, loan: str, bundle: bytes) -> None:
        with self._lock:
            self._begun.add(loan)
        sent = {DIGEST_HEADER: digest_of(bundle), "Content-Type": "application/octet-stream"}
        self._call("PUT", f"loans/{loan}/training", bundle, sent, TAKES_WITHIN_S)

    def read_progress(self, loan: str) -> LentProgress:
        told: LentProgress = _checked(_PROGRESS, self._call("GET", f"loans/{loan}"))
        return told

    def set_epochs(self, loan: str, epochs: int) -> None:
        self._call("PATCH", f"loans/{loan}", json.dumps({"epochs": epochs}).encode())

    def fetch_checkpoint(self, loan: str, digest: str) -> bytes:
        content = self._call("GET", f"loans/{loan}/checkpoints/{digest}")
        if digest_of(content) != digest:
            raise CallError(f"{self.site}: a checkpoint does not match its SHA-256; it is not used")
        return content

    def end_training(self, loan: str) -> None:
        with suppress(RuntimeError):  # This service has ended, and the other one notices.
            self._ends.submit(self._end, loan)

    def close(self) -> None:
        """Waits until loans that have ended are given back, or the service is not reached."""
        self._ends.shutdown()

    def _end(self, loan: str) -> None:
        try:
            self._call("DELETE", f"loans/{loan}")
        except CallError as error:
            _LOG.info("%s; it ends loan %s by itself", error, loan)
        with self._lock:
            self._begun.discard(loan)

    def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        within_s: float = ANSWERS_WITHIN_S,
    ) -> bytes:
        """Returns the content of an answer.

        Raises:
            GoneError: what is asked for is not there.
            CallError: it is not reached, or refuses; with its sentence.
        """
        try:
            with closing(self._connection(within_s)) as connection:
                told = {"Content-Type": "application/json", **(headers or {}), **self._credentials()}
                if body is not None:
                    told["Content-Length"] = str(len(body))
                # A file is sent in parts, each of which has the time; bytes would be a single one.
                sent = None if body is None else BytesIO(body)
                connection.request(method, f"{LENDING}/{path}", sent, told)
                answer = connection.getresponse()
                content = answer.read()
        except (OSError, HTTPException, UserError) as error:
            raise CallError(f"{self.site} {_in_words(error, within_s)}") from error
        if answer.status == 401:
            raise CallError(
                f"{self.site} refuses the token in lending.borrow_from; copy the one of its folder"
            )
        if answer.status >= 400:
            kind = GoneError if answer.status == 404 else CallError
            raise kind(f"{self.site}: {_sentence(content) or f'it answers {answer.status}'}")
        return content

    def _connection(self, within_s: float) -> HTTPConnection:
        url = urlsplit(self._config.url)
        host, port = url.hostname or "", url.port
        if url.scheme == "https":
            context = create_default_context(cafile=self._config.ca)
            return HTTPSConnection(host, port, timeout=within_s, context=context)
        return HTTPConnection(host, port, timeout=within_s)

    def _credentials(self) -> dict[str, str]:
        token = unquote(urlsplit(fill_in_url(self._config.url, "the token of that service")).password or "")
        return {VERSION_HEADER: __version__, **({"Authorization": f"Bearer {token}"} if token else {})}


def _checked(kind: TypeAdapter[Any], content: bytes) -> Any:
    try:
        return kind.validate_json(content)
    except ValidationError as error:
        raise CallError(f"an answer is none of Ekya's ({error.error_count()} problems)") from error


def _sentence(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, LookupError, TypeError):
        return ""


def _in_words(error: Exception, within_s: float) -> str:
    """Returns what is wrong with a service, and what to do."""
    if isinstance(error, gaierror):
        return "is no known host; correct its URL"
    if isinstance(error, ConnectionRefusedError):
        return "refuses connections: start ekya serve there, or correct its URL"
    if isinstance(error, TimeoutError):
        return f"does not answer within {within_s:g} s; check that it runs, and firewalls on the way"
    return f"is not reached ({error}); if it has ended, its log says why"
