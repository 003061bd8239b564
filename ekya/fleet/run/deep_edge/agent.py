"""A machine tells the manager that it is there, and its state, again and again."""

import json
import logging
import time
from collections.abc import Mapping
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from ekya.errors import UserError
from ekya.fleet.policy.places import NodeState
from ekya.fleet.run.deep_edge.states import watched

_LOG = logging.getLogger(__name__)

_ANSWERS_S = 10.0


def tell_on(manager: str, node: Mapping[str, str], every_s: float) -> None:
    """Until it is interrupted. A manager that goes away is told again when it is back.

    Args:
        manager: its URL.
        node: arguments of ``POST /monitor`` other than its state.
        every_s: for which the state is read before each telling.

    Raises:
        UserError: nobody answers at first, or the manager does not want this machine.
    """
    heard, first = True, True
    while True:
        with watched(min(every_s / 4, 0.25)) as watch:
            time.sleep(every_s)
        try:
            _tell(manager, {**node, **_words(watch.state())})
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            if first:
                raise UserError(
                    f"--manager {manager}: nobody answers ({reason}); begin one with ekya fleet manager"
                ) from error
            if heard:
                _LOG.warning("%s does not answer (%s); it is told again", manager, reason)
            heard = False
        else:
            if first:
                _LOG.info("%s is known to %s", node["node"], manager)
            heard, first = True, False


def _words(state: NodeState) -> dict[str, str]:
    parts = {"cpu": state.cpu, "gpu": state.gpu, "mem": state.mem}
    return {name: f"{min(1.0, max(0.0, part)):.4f}" for name, part in parts.items()}


def _tell(manager: str, arguments: Mapping[str, str]) -> None:
    if not manager.startswith(("http://", "https://")):
        raise UserError(f"--manager {manager}: write it as http://HOST:PORT")
    request = Request(f"{manager.rstrip('/')}/monitor?{urlencode(arguments)}", method="POST")  # noqa: S310
    try:
        with urlopen(request, timeout=_ANSWERS_S) as answer:  # noqa: S310
            answer.read()
    except HTTPError as error:
        if error.code != 400:
            raise
        raise UserError(f"{manager} says: {json.loads(error.read())['error']}") from error
