"""A run that operators change: the control and the executor of a live run, with fake actors."""

from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache

from fake_actors import SETTINGS, FakeActors, make_executor
from test_resuming import OPTIONS
from waiting import HANG_GUARD_S, wait_until

from ekya.config.fleet_reading import dump_fleet, load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.host import HostCosts, StreamCosts
from ekya.core.units import ModelVersion
from ekya.pipeline.run_writer import ModelRecord
from ekya.planning.sizing.fleet_sizes import MachineSize
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.runtime.actors.actor_kinds import Ready
from ekya.runtime.driver.fleet_changes import RunLimits
from ekya.runtime.driver.operator_control import OperatorControl
from ekya.system.files import write_text_atomic

COSTS = StreamCosts(10.0, dict.fromkeys((24, 32, 48, 64, 96), 0.001))
CORES = MachineSize(4000, on_cores=True)
FIRST, SECOND = "cam-1", "cam-2"
"""Of the wait for a call that should end."""


@cache
def _shipped():
    return load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))


def shipped_fleet(*ids):
    """Returns the shipped fleet with these cameras."""
    fleet = _shipped()
    cameras = tuple(fleet.streams[0].model_copy(update={"id": one}) for one in ids)
    return fleet.model_copy(update={"streams": cameras})


def camera(name):
    """Returns a camera that can be added."""
    return shipped_fleet(name).streams[0]


class Operated:
    """A run of two cameras. This thread is that of the loop; operators have others.

    Args:
        path: of the folder that holds the run.
        monkeypatch: puts the fakes in the place of Ray.
        opens: whether a camera that is added opens at once.
        constants: of the loop.
        machine: where it runs.

    Attributes:
        may_go_on: whether the loop may take another step.
    """

    def __init__(self, path, monkeypatch, opens=True, constants=OPTIONS, machine=CORES):
        self.folder = RunFolder.create_numbered(path, "run")
        fleet = shipped_fleet(FIRST, SECOND)
        write_text_atomic(self.folder.fleet, dump_fleet(fleet))
        self.store = StateStore(self.folder.state)
        replies = {"admit_stream": (Ready(SETTINGS),)} if opens else {}
        self.actors = FakeActors((FIRST, SECOND), replies=replies, fleet=fleet).install(monkeypatch)
        self.may_go_on = True
        self.executor = make_executor(self.actors, may_go_on=lambda: self.may_go_on)
        self.control = OperatorControl(
            self.executor,
            self.actors,
            self.actors.clock,
            self.folder,
            self.store,
            RunLimits(
                fleet, constants, HostCosts({FIRST: COSTS}, 0.01, constants.family_costs, 4.0), machine
            ),
        )
        self.events = []
        self._operators = ThreadPoolExecutor(8)

    def close(self):
        self.control.close()
        self._operators.shutdown()
        self.store.close()

    def begin(self, call, *arguments):
        """Has an operator make a call; returns its future."""
        return self._operators.submit(call, *arguments)

    def turn(self):
        """Makes a turn of the loop, which executes no commands."""
        self.events += self.executor.wait(self.actors.clock.now + 1).events

    def until(self, condition):
        """Makes turns until a condition holds."""
        wait_until(lambda: condition() or self.turn())

    def ask(self, call, *arguments):
        """Has an operator make a call, and returns its result."""
        asked = self.begin(call, *arguments)
        self.until(asked.done)
        self.turn()
        return asked.result()

    def opening(self, count=1):
        """Returns the calls that open cameras, when there are so many."""
        self.until(lambda: len(self.actors.calls("admit_stream")) >= 2 * count)
        return [
            call for call in self.actors.calls("admit_stream") if call.actor is not self.actors.preparation
        ]

    def cameras(self):
        """Returns the cameras of ``fleet.yaml`` by id, which are those that the control knows."""
        written = load_fleet(self.folder.fleet)
        assert written.streams == self.control.fleet.streams
        return {one.id: one for one in written.streams}

    def keep_model(self, stream, version, of=None):
        """Records a model that served: trained, or ``of`` an earlier version."""
        record = ModelRecord(self.folder, self.store, stream)
        if of is None:
            record.add_model(ModelVersion(version), b"%d" % version, version, None, 0.5, version)
        else:
            record.serve_again(ModelVersion(version), ModelVersion(of), version)
        self.actors.streams[stream].version = ModelVersion(version)


def ended(*futures):
    """Returns whether calls end within the limit."""
    return not wait(futures, HANG_GUARD_S).not_done
