"""A crew that cannot be assembled."""

from types import SimpleNamespace

import pytest
from crews import EAST, SITES, WEST, parted, task_of

from ekya.fleet.policy.assignment import Part
from ekya.fleet.run.training import crew as crew_module
from ekya.fleet.run.training.crew import Crew, CrewLostError, Dead
from ekya.fleet.run.training.dealing import deal
from ekya.fleet.run.training.material import Material
from ekya.fleet.run.training.nodes import KnownNodes
from ekya.fleet.run.training.processes import NoProcessError
from ekya.fleet.run.training.protocol import FleetNode


class OnlyInTheEast:
    """Provides processes on one node only."""

    def __init__(self):
        self.given_back = []

    def take(self, node):
        if node.name != EAST:
            raise NoProcessError(f"{node.site} gives no process away: it takes no guests")
        return f"a process on {node.name}"

    def give_back(self, node, actor):
        self.given_back.append(actor)


def test_who_gives_no_process_away_is_lost_by_name_and_nobody_elses_process_is(model, monkeypatch) -> None:
    monkeypatch.setattr(crew_module, "ray", SimpleNamespace(put=lambda value: value))
    nodes = {name: FleetNode(name, SITES[name], name, 300) for name in (EAST, WEST)}
    assignment = parted(Part(EAST), Part(WEST))
    material, processes = Material.of(task_of(model)), OnlyInTheEast()
    crew = Crew(material, KnownNodes(nodes), processes, None)
    shards = deal(material.lying(SITES), assignment)
    with pytest.raises(CrewLostError, match="worker 0 on west: west gives no process away") as lost:
        crew.assemble(material.plan(assignment), shards, EAST, None)
    (west,) = (worker for worker in shards if worker.node == WEST)
    assert lost.value.dead == (Dead(nodes[WEST], west, "west gives no process away: it takes no guests"),)
    crew.release()
    assert processes.given_back == ["a process on east"]
