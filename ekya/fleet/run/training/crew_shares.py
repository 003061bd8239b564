"""Shares of the nodes that the processes of one training get."""

from collections.abc import Mapping

from ekya.fleet.policy.assignment import SERVER_PART
from ekya.fleet.policy.names import NodeName
from ekya.fleet.run.training.protocol import FleetNode
from ekya.fleet.run.training.workers import Shard, WorkerId


def works_at_home(
    nodes: Mapping[NodeName, FleetNode], server: NodeName, shards: Mapping[WorkerId, Shard]
) -> bool:
    """Returns whether the only worker is on the parameter server's node, so that one process can be both."""
    return len(shards) == 1 and all(
        nodes[worker.node].machine_id == nodes[server].machine_id for worker in shards
    )


def shares_of(
    nodes: Mapping[NodeName, FleetNode], server: NodeName, shards: Mapping[WorkerId, Shard]
) -> dict[WorkerId | None, int]:
    """Returns each worker's share of its node, in thousandths, and under None the parameter server's."""
    counts: dict[NodeName, int] = {}
    for worker in shards:
        counts[worker.node] = counts.get(worker.node, 0) + 1
    whole = nodes[server].share_milli
    own = round(whole * SERVER_PART) if server in counts else whole
    shares: dict[WorkerId | None, int] = {None: max(1, own)}
    for worker, shard in shards.items():
        left = nodes[worker.node].share_milli - (own if worker.node == server else 0)
        shares[worker] = max(1, left * shard.share_milli // 1000 // counts[worker.node])
    return shares
