"""A training on a real process of a service that lends, over HTTP."""

import os
import signal
from dataclasses import replace

import pytest
from bundles import GAMMA, NAMES, bundle_with
from fake_service import TOKEN
from http_asking import serving
from ray_nodes import ray_nodes
from waiting import LONG_GUARD_S, wait_until

from ekya.config.fleet_sections import LenderConfig
from ekya.core.speed import LINEAR
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.lending import Lent
from ekya.fleet.run.live.lender import Lender
from ekya.fleet.run.live.lending_desk import LendingDesk
from ekya.fleet.run.training.processes import TrainingProcesses
from ekya.fleet.run.training.protocol import Host
from ekya.fleet.run.training.trainer import RemoteTraining
from ekya.gpu.backends.cpu import CpuShares
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.edge.model import build_edge_model
from ekya.models.training.trainer import Compute

pytestmark = pytest.mark.live

HOME, WEST = SiteName("home"), SiteName("west")


class West:
    """A service that lends processes of a Ray node."""

    def __init__(self, ray_node, folder):
        self.processes, self.executor = TrainingProcesses(ray_node, CpuShares(2)), self
        self.desk = LendingDesk(folder / "lent", self.processes, lambda: 0)
        self.desk.open_for(self)

    def lending(self):
        return self.desk

    def spare_room(self, now_us, until_us):
        return Room(WEST, 100, (0.0,) * 10, LINEAR)

    def lend_share(self, number, lent):
        return True

    def take_back_share(self, number, at_us):
        pass


@pytest.fixture(scope="module")
def west(tmp_path_factory):
    folder = tmp_path_factory.mktemp("west")
    with ray_nodes(("west",)) as nodes, pytest.MonkeyPatch.context() as patched:
        patched.setenv("WEST_TOKEN", TOKEN)
        made = West(nodes["west"], folder)
        with serving(made, folder) as asks:
            made.lender = Lender(
                LenderConfig(url=asks.url.replace("://", "://ekya:${WEST_TOKEN}@")), "0" * 16, lambda: 0
            )
            yield made
            made.lender.close()
        made.desk.close()
        made.processes.close()


def trained_by(west, bundle, number):
    assert west.lender.lend_share(number, Lent(900, 0, 600_000_000))
    host = Host(WEST, west.lender.loan_id(number), 900, west.lender)
    training = RemoteTraining("cam", lambda: bundle, bundle.config.epochs, host, HOME, lambda site: None)
    training.start_thread()
    return training


def test_it_learns_what_it_would_here_to_the_bit_and_the_process_goes_back(west) -> None:
    model = build_edge_model(NAMES, 0, 7, "mobilenet_v3_small")
    bundle = bundle_with(model, replace(GAMMA, trainable_blocks=0))
    training, here = trained_by(west, bundle, 1), bundle.make_retraining(Compute())
    here.prepare_training()
    epochs = tuple(here.run_epoch() for _ in range(GAMMA.epochs))
    assert training.wait(LONG_GUARD_S)
    told = training.poll()
    assert (told.state, told.epochs, told.failures) == ("done", epochs, ())
    assert from_bytes(training.best_yet().weights).classes == NAMES
    wait_until(lambda: len(west.processes._idle) == 1 and not west.desk._loans)


def test_a_process_that_is_killed_is_made_anew_and_a_busy_one_is_stopped(west) -> None:
    model = build_edge_model(NAMES, 0, 7, "mobilenet_v3_small")
    training = trained_by(west, bundle_with(model, replace(GAMMA, trainable_blocks=0, epochs=5000)), 2)
    wait_until(lambda: training.poll().epochs, guard_s=LONG_GUARD_S)
    (lent,) = west.desk._loans.values()
    os.kill(lent.training._process.ask("pid"), signal.SIGKILL)
    wait_until(lambda: training.poll().failures, guard_s=LONG_GUARD_S)
    before = len(training.poll().epochs)
    wait_until(lambda: len(training.poll().epochs) > before + 1, guard_s=LONG_GUARD_S)
    training.stop_training()
    assert training.wait(LONG_GUARD_S)
    assert (training.poll().state, len(training.poll().failures)) == ("stopped", 1)
