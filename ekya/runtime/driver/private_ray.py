"""Keeps a Ray that is started here to this machine and this user."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray._private import ray_constants

from ekya.system.files import user_errors
from ekya.system.ray_environment import set_ray_environment


@contextmanager
def private_ray() -> Iterator[None]:
    """Has a Ray that is started in the block listen on loopback alone, and ask for this user's token.

    Ray's processes unpickle what they receive: who reaches their ports and has the token runs code. Ray asks
    for the token by itself, unless ``RAY_AUTH_MODE`` turns that off.

    Raises:
        UserError: the file of the token cannot be made or changed.
    """
    set_ray_environment()
    _keep_token_private()
    # Ray's switch for systems where it makes no cluster: the node's address is 127.0.0.1, and all processes
    # listen there alone. Given as the address of a node, Ray would replace 127.0.0.1 by that of a network.
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _keep_token_private() -> None:
    """Makes the file of Ray's token readable by this user alone; Ray would let its umask decide."""
    if os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
        return
    path = Path.home() / ".ray" / "auth_token"
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Ray writes the token into the file that is there.
        path.touch(mode=0o600)
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
