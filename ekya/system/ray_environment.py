"""Environment variables with which Ray and the processes of actors are started."""

import os

_NICENESS = {"RAY_worker_niceness": "0"}
"""Ray starts workers at niceness 15: any other program starves them, and they could hardly differ."""

_LOGS = {"RAY_ROTATION_MAX_BYTES": str(8 << 20), "RAY_ROTATION_BACKUP_COUNT": "1"}
"""Each log of Ray's keeps 16 MiB at most: by default it is 3 GB, which a service for months would fill."""

_OF_CLUSTER = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    **_LOGS,
    **_NICENESS,
}

OF_ACTOR = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1", **_NICENESS}
"""Of an actor's process: Ray chooses neither its GPU, which its own environment names, nor its niceness."""


def set_ray_environment() -> None:
    """Sets what this process's environment leaves open; call it before Ray is started or joined."""
    for name, value in _OF_CLUSTER.items():
        os.environ.setdefault(name, value)
