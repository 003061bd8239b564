"""Heartbeats by which a machine reports itself and its state to the manager."""

import json
import logging
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlencode, urlsplit

from ekya.core.errors import UserError
from ekya.fleet.policy.places import NodeState
from ekya.fleet.run.deep_edge.states import watched

_LOG = logging.getLogger(__name__)

_ANSWERS_S = 10.0


def tell_on(manager: str, node: Mapping[str, str], every_s: float) -> None:
    """Sends heartbeats until it is interrupted, also after a manager was out of reach for a time.

    Args:
        manager: its URL.
        node: arguments of ``POST /monitor`` other than the state.
        every_s: seconds between two heartbeats, over which the state is measured.

    Raises:
        UserError: the first heartbeat gets no response, or the manager rejects this machine.
    """
    heard, first = True, True
    while True:
        with watched(min(every_s / 4, 0.25)) as watch:
            time.sleep(every_s)
        try:
            _tell(manager, {**node, **_words(watch.state())})
        except (HTTPException, OSError) as error:
            if first:
                raise UserError(
                    f"--manager {manager}: no answer ({error}); begin one with ekya fleet manager"
                ) from error
            if heard:
                _LOG.warning("%s does not answer (%s); it is told again", manager, error)
            heard = False
        else:
            if first:
                _LOG.info("%s is known to %s", node["node"], manager)
            heard, first = True, False


def _words(state: NodeState) -> dict[str, str]:
    parts = {"cpu": state.cpu, "gpu": state.gpu, "mem": state.mem}
    return {name: f"{min(1.0, max(0.0, part)):.4f}" for name, part in parts.items()}


_CONNECTIONS = {"http": HTTPConnection, "https": HTTPSConnection}


def _tell(manager: str, arguments: Mapping[str, str]) -> None:
    try:
        url = urlsplit(manager)
        host, port = url.hostname, url.port
    except ValueError:
        host = port = None
    if host is None or url.scheme not in _CONNECTIONS:
        raise UserError(f"--manager {manager}: write it as http://HOST:PORT")
    connection = _CONNECTIONS[url.scheme](host, port, timeout=_ANSWERS_S)
    try:
        connection.request("POST", f"{url.path.rstrip('/')}/monitor?{urlencode(arguments)}")
        answer = connection.getresponse()
        said = answer.read()
    finally:
        connection.close()
    if answer.status == 400:
        raise UserError(f"{manager} says: {json.loads(said)['error']}")
    if answer.status != 200:
        raise HTTPException(f"{answer.status} {answer.reason}")
