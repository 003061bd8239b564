"""A stream's retraining without training: what its tests share."""

from types import SimpleNamespace

from waiting import wait_until

from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.commands import StartRetraining
from ekya.core.units import BASE_VERSION, JobId
from ekya.gpu.backends.cpu import CpuShares
from ekya.models.edge.device_memory import MemoryPeaks
from ekya.runtime.actors.actor_kinds import ActorConfig, ProcessConfig, StreamActorConfig
from ekya.runtime.actors.stream_retraining import StreamRetraining

CAM = "cam-1"
NO_LABELS = SimpleNamespace(training=SimpleNamespace(examples=()))


class NoMemory:
    """Exemplar memory that keeps nothing."""

    kept = None

    def __init__(self, budget):
        self.budget = budget

    def update_exemplars(self, _crops):
        return self


def process_config(folder, cores=1):
    """Returns the settings of a process that retrains all streams of the default fleet."""
    fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
    common = ActorConfig(folder, fleet, 0, CpuShares(cores), "cpu", (0,) * len(fleet.streams))
    streams = tuple(StreamActorConfig(common, place, BASE_VERSION) for place in range(len(fleet.streams)))
    return ProcessConfig(common, "retraining/gpu-0", 0, streams)


def stream_retraining(folder, mailbox):
    """Returns the retraining of the first stream."""
    return StreamRetraining(process_config(folder).streams[0], mailbox, MemoryPeaks())


def start_command(job, config, share_milli=1000, stream=CAM):
    """Returns the command to begin a job in window 3."""
    return StartRetraining(stream, JobId(job), 3, config, share_milli, 0.5, 1.0)


def events_until(take, kind, count=1):
    """Takes events until this many of a kind have come; returns all."""
    events = []

    def came():
        events.extend(take(0.05))
        return sum(isinstance(event, kind) for event in events) >= count

    wait_until(came, lambda: events)
    return events
