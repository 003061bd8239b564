"""Profiler (Deep-Edge §IV.B.1): trains a real edge model under stress, beside inference.

A data point is measured on this machine: the state with the application and the stressors, the state with the
training too, the training time per sample, and the application's time per frame meanwhile. The time of an
update needs a parameter server; here it is 0, which means not measured. GPUs are not stressed: stress-ng
cannot do that.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ekya.core.configs import RetrainConfig
from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.deep_edge.profile import INFERENCE, EdgeWork, ProfilePoint, ProfileSetting
from ekya.fleet.policy.places import NodeState
from ekya.fleet.run.deep_edge.states import watched
from ekya.fleet.run.deep_edge.stress import StressPoint, stressed
from ekya.gpu.backends.backend import ShareBackend
from ekya.pipeline.speed_jobs import ProbeSpec, probes, rates_at


@dataclass(frozen=True, slots=True)
class ProfileRun:
    """Data points to measure on this machine.

    Attributes:
        work: kind of the machine, and the edge model.
        seconds: of measuring each state and each rate.
        batches: b_i, each at every stress point.
        shares_milli: of the training, each at every stress point.
        points: of stress.
    """

    work: EdgeWork
    seconds: float = 3.0
    batches: tuple[int, ...] = (4, 8, 16, 32)
    shares_milli: tuple[int, ...] = (FULL_GPU_MILLI,)
    points: tuple[StressPoint, ...] = (StressPoint(),)

    def tried(self) -> tuple[ProfileSetting, ...]:
        """Returns the conditions of each data point, in the order of measurement."""
        return tuple(
            ProfileSetting(self.work, stress.cpu, stress.mem, batch, share)
            for stress in self.points
            for batch in self.batches
            for share in self.shares_milli
        )


def profiled(
    run: ProfileRun, backend: ShareBackend, done: Collection[ProfileSetting] = ()
) -> Iterator[tuple[ProfileSetting, ProfilePoint]]:
    """Measures one data point after the other, and yields each with its conditions.

    Args:
        run: points to measure.
        backend: opened; holds the training to its share. Its device trains.
        done: points to skip.

    Raises:
        UserError: stress-ng is missing, or a process cannot begin.
    """
    left = [tried for tried in run.tried() if tried not in done]
    for (cpu, mem, batch), together in groupby(left, lambda tried: (tried.cpu, tried.mem, tried.batch)):
        yield from _at(run, backend, StressPoint(cpu, mem), batch, list(together))


def _at(
    run: ProfileRun, backend: ShareBackend, stress: StressPoint, batch: int, shares: Sequence[ProfileSetting]
) -> Iterator[tuple[ProfileSetting, ProfilePoint]]:
    work = run.work
    config = RetrainConfig(
        epochs=1, batch_size=batch, head_width=0, trainable_blocks=work.trainable_blocks, data_fraction=1.0
    )
    spec = ProbeSpec(work.architecture, work.side, config, backend.probe().device, run.seconds)
    with stressed(stress), probes(backend, spec, ["inference"]) as (app,):
        with watched() as watch:
            rates_at([(app, FULL_GPU_MILLI)])
        before = watch.state()
        with probes(backend, spec, ["training"]) as (training,):
            for tried in shares:
                with watched() as watch:
                    trained, served = rates_at([(training, tried.share_milli), (app, FULL_GPU_MILLI)])
                yield (
                    tried,
                    ProfilePoint(
                        work.kind,
                        before,
                        batch,
                        (batch,),
                        NodeState(),
                        tried.share_milli,
                        compute_s=1 / trained.images_per_s,
                        update_s=0.0,
                        after=watch.state(),
                        app=INFERENCE,
                        exec_s=served.p95_ms / 1000,
                    ),
                )
