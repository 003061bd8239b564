"""The Profiler (Deep-Edge §IV.B.1): a real edge model is trained under stress, beside inference.

A data point is measured on this machine: the state with the application and the stressors, the state with the
training too, what a sample takes to train, and what the application takes for a frame meanwhile. The time of
an update is measured where there is a parameter server, in a training that runs (``updated``); until then it
is 0, which says that nobody knows. Stress of a GPU is absent: stress-ng has none.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ekya.core.configs import RetrainConfig
from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.deep_edge.profile import ProfilePoint
from ekya.fleet.policy.places import NodeState
from ekya.fleet.run.deep_edge.states import watched
from ekya.fleet.run.deep_edge.stress import StressPoint, stressed
from ekya.gpu.protocol import ShareBackend
from ekya.workers.speed_jobs import ProbeSpec, Rate, probes, rates_at

INFERENCE = "inference"
"""The background application: for us, the inference of the server that also trains."""


@dataclass(frozen=True, slots=True)
class ProfileRun:
    """What is tried on this machine.

    Attributes:
        kind: of machine that it is; machines of a kind share their models.
        architecture, side: the edge model and its crops.
        trainable_blocks: of it.
        seconds: for which each state and each rate is measured.
        batches: b_i, each at every stress point.
        shares_milli: to which the training is held, each at every stress point.
        points: of stress.
    """

    kind: str
    architecture: str = "resnet18"
    side: int = 32
    trainable_blocks: int = 1
    seconds: float = 3.0
    batches: tuple[int, ...] = (4, 8, 16, 32)
    shares_milli: tuple[int, ...] = (FULL_GPU_MILLI,)
    points: tuple[StressPoint, ...] = (StressPoint(),)

    @property
    def size(self) -> int:
        """How many data points there will be."""
        return len(self.batches) * len(self.shares_milli) * len(self.points)


def profiled(run: ProfileRun, backend: ShareBackend) -> Iterator[ProfilePoint]:
    """One data point after the other, each with processes of its own.

    Args:
        run: what is tried.
        backend: opened; holds the training to its share. Its device trains.

    Raises:
        UserError: stress-ng is missing, or a process cannot begin.
    """
    for stress in run.points:
        for batch in run.batches:
            yield from _at(run, backend, stress, batch)


def _at(run: ProfileRun, backend: ShareBackend, stress: StressPoint, batch: int) -> Iterator[ProfilePoint]:
    config = RetrainConfig(
        epochs=1, batch_size=batch, head_width=0, trainable_blocks=run.trainable_blocks, data_fraction=1.0
    )
    spec = ProbeSpec(run.architecture, run.side, config, backend.probe().device, run.seconds)
    with stressed(stress), probes(backend, spec, ["inference"]) as (app,):
        with watched() as watch:
            rates_at([(app, FULL_GPU_MILLI)])
        before = watch.state()
        with probes(backend, spec, ["training"]) as (training,):
            for share in run.shares_milli:
                with watched() as watch:
                    trained, served = rates_at([(training, share), (app, FULL_GPU_MILLI)])
                yield _point(run.kind, before, watch.state(), batch, share, trained, served)


def _point(
    kind: str, before: NodeState, after: NodeState, batch: int, share: int, trained: Rate, served: Rate
) -> ProfilePoint:
    return ProfilePoint(
        kind,
        before,
        batch,
        (batch,),
        NodeState(),
        share,
        compute_s=1 / trained.images_per_s,
        update_s=0.0,
        after=after,
        app=INFERENCE,
        exec_s=served.p95_ms / 1000,
    )


def updated(
    points: Iterable[ProfilePoint], batches: tuple[int, ...], server: NodeState, update_s: float
) -> list[ProfilePoint]:
    """The same points with the time of an update that a training with a parameter server has shown.

    Args:
        points: of one worker of that training.
        batches: B, of all its workers.
        server: X_ps meanwhile.
        update_s: measured, for one step.
    """
    return [replace(point, batches=batches, server=server, update_s=update_s) for point in points]
