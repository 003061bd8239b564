"""Several Ray nodes on this machine."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.cluster_utils import Cluster

from ekya.runtime.driver.local_ray import object_store_bytes, private_ray

_STORE_BYTES = 256 * 1024**2


@contextmanager
def ray_nodes(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Starts a Ray node for each name, connects this process to them, and returns the nodes' ids by name.

    The head, on which this process is, is not one of them.
    """
    store_bytes = object_store_bytes(_STORE_BYTES)
    head = {"num_cpus": 0, "object_store_memory": store_bytes, "include_dashboard": False}
    made: Any = Cluster  # Untyped in Ray.
    with private_ray():
        cluster = made(initialize_head=True, head_node_args=head)
        try:
            nodes = {
                name: cluster.add_node(wait=False, num_cpus=1, object_store_memory=store_bytes).node_id
                for name in names
            }
            ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
            cluster.wait_for_nodes()
            yield nodes
        finally:
            ray.shutdown()
            cluster.shutdown()
