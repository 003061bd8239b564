"""Sink that posts batches of messages to a web server."""

import hashlib
import hmac
import json
from collections.abc import Sequence
from contextlib import suppress

import requests

from ekya.service.answers.messages import CameraReport, Message, NotDeliveredError

SIGNATURE = "X-Ekya-Signature"
"""Header with ``sha256=`` and the HMAC-SHA256 of the body in hexadecimal digits."""

_MOST_READ_BYTES = 65_536
_LONGEST_READ_S = 0.5
"""Bytes of a reply that are read, and seconds for which it is waited for."""


class _Session(requests.Session):
    """Follows no redirection: even where it is told not to, ``requests`` reads the whole body of one."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Returns that a reply leads nowhere else."""


class WebhookSink:
    """Posts ``{"answers": [message, ...]}``; a status of 200 to 299 confirms all of them.

    Args:
        url: with its secrets.
        secret: signs bodies; None for no signature.
        bearer: token for the header ``Authorization``; None for none.
        timeout_s: seconds to wait for a connection, and for a reply.
        batch: largest number of messages in a POST.
    """

    def __init__(
        self, url: str, secret: str | None, bearer: str | None, timeout_s: float, batch: int
    ) -> None:
        self.batch = batch
        self._url, self._secret, self._bearer, self._timeout_s = url, secret, bearer, timeout_s
        self._session = _Session()

    def send_messages(self, messages: Sequence[Message]) -> None:
        """Posts the messages; a redirection counts as a refusal, since a POST does not survive it."""
        # Encoded once: the signature is of the bytes that are sent.
        body = json.dumps({"answers": messages}, ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json"}
        if self._secret is not None:
            digest = hmac.new(self._secret.encode(), body, hashlib.sha256).hexdigest()
            headers[SIGNATURE] = f"sha256={digest}"
        if self._bearer is not None:
            headers["Authorization"] = f"Bearer {self._bearer}"
        try:
            # Streamed: the body of the reply is of no use, and may be of any length.
            with self._session.post(
                self._url,
                data=body,
                headers=headers,
                timeout=self._timeout_s,
                stream=True,
            ) as reply:
                status = reply.status_code
                _read_short_body(reply)
        except requests.RequestException as error:
            raise NotDeliveredError(f"the server cannot be reached ({error})") from error
        if not 200 <= status < 300:
            raise NotDeliveredError(f"the server answers with status {status}")

    def report_cameras(self, cameras: Sequence[CameraReport]) -> None:
        """Does nothing: states are not posted."""

    def close(self) -> None:
        """Closes connections."""
        self._session.close()


def _read_short_body(reply: requests.Response) -> None:
    """Reads a body that comes at once, so that the connection can be used again; it is closed otherwise."""
    # The status has decided already, whatever is wrong with the body.
    with suppress(Exception):
        # None of a connection that the server closes after this reply.
        if (socket := reply.raw.connection.sock) is not None:
            socket.settimeout(_LONGEST_READ_S)  # until the next request sets its own
            reply.raw.read1(_MOST_READ_BYTES, decode_content=False)
