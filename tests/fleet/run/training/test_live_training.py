"""A training on a real process that another server lends, over HTTP."""

import os
import signal
from dataclasses import replace

import pytest
from bundles import GAMMA, NAMES, bundle_with
from ray_nodes import ray_nodes
from waiting import LONG_GUARD_S, wait_until

from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import LocalHandle
from ekya.fleet.run.live.lent_processes import LentProcesses
from ekya.fleet.run.live.neighbours import Neighbours
from ekya.fleet.run.live.orders import Neighbour
from ekya.fleet.run.sites.server import SiteServer
from ekya.fleet.run.training.protocol import Host
from ekya.fleet.run.training.trainer import RemoteTraining
from ekya.gpu.backends.cpu import CpuShares
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.edge.model import build_edge_model
from ekya.models.training.trainer import Compute

pytestmark = pytest.mark.live

HOME, WEST = SiteName("home"), SiteName("west")
AT_WEST = Host(WEST, "west's process", 900)


class Server:
    """A server that lends processes of a Ray node."""

    def __init__(self, ray_node, doors):
        self.lent = LentProcesses(ray_node, CpuShares(2), 0, doors)

    def take_process(self, borrower):
        return self.lent.take_process(borrower)

    def give_back_process(self, borrower, process):
        self.lent.give_back_process(borrower, process)

    def machine_id(self):
        return AT_WEST.machine_id


@pytest.fixture(scope="module")
def server():
    with ray_nodes(("west",)) as nodes:
        doors = SiteServer("127.0.0.1", 0, "t" * 40)
        made = Server(nodes["west"], doors)
        yield made
        made.lent.close()
        doors.close()


def trained_by(server, bundle):
    neighbours = Neighbours(HOME)
    neighbours.add_neighbours({WEST: Neighbour(LocalHandle(server, 4), AT_WEST.machine_id)})
    training = RemoteTraining("cam", bundle, AT_WEST, neighbours, HOME)
    training.start_thread()
    return training


def test_it_learns_what_it_would_here_to_the_bit_and_the_process_goes_back(server) -> None:
    model = build_edge_model(NAMES, 0, 7, "mobilenet_v3_small")
    bundle = bundle_with(model, replace(GAMMA, trainable_blocks=0))
    training, here = trained_by(server, bundle), bundle.make_retraining(Compute())
    here.prepare_training()
    epochs = tuple(here.run_epoch() for _ in range(GAMMA.epochs))
    assert training.wait(LONG_GUARD_S)
    told = training.poll()
    assert (told.state, told.epochs, told.failures) == ("done", epochs, ())
    assert from_bytes(training.best_yet().weights).classes == NAMES
    assert not server.lent._taken


def test_a_process_that_is_killed_is_made_anew_and_a_busy_one_is_stopped(server) -> None:
    model = build_edge_model(NAMES, 0, 7, "mobilenet_v3_small")
    training = trained_by(server, bundle_with(model, replace(GAMMA, trainable_blocks=0, epochs=5000)))
    wait_until(lambda: training.poll().epochs, guard_s=LONG_GUARD_S)
    (taken,) = server.lent._taken.values()
    os.kill(taken.process.call("pid").result(LONG_GUARD_S), signal.SIGKILL)
    wait_until(lambda: training.poll().failures, guard_s=LONG_GUARD_S)
    before = len(training.poll().epochs)
    wait_until(lambda: len(training.poll().epochs) > before + 1, guard_s=LONG_GUARD_S)
    training.stop_training()
    assert training.wait(LONG_GUARD_S)
    assert (training.poll().state, len(training.poll().failures)) == ("stopped", 1)
