"""Tests of speeds: measured in processes that work like jobs."""

import multiprocessing
from contextlib import contextmanager

import pytest

import ekya.pipeline.speed_probe as probing
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.speed import CoRun, SpeedCurve
from ekya.gpu.backends.cpu import CpuShares
from ekya.pipeline.speed_jobs import ProbeSpec, Rate, probes, rates_at
from ekya.pipeline.speed_probe import measure_speeds

SPEC = ProbeSpec("mobilenet_v3_small", 16, RetrainConfig(2, 8, 0, 1, 1.0), "cpu", 0.2)
BENT = SpeedCurve(((0, 0.0), (500, 0.8), (1000, 1.0)))


@pytest.fixture(params=[1000])
def device(monkeypatch, request):
    """Fake jobs: alone as fast as ``BENT`` says, together at three fifths of it; grants are in tenths."""
    limit = request.param

    @contextmanager
    def asked(_backend, _spec, kinds, all_held):
        assert all_held, "inference under MPS would run as fast at any share"
        yield kinds

    def rates(pipes, share_milli):
        full = {"training": 10.0, "inference": 50.0}[pipes[0]]
        beside = 1.0 if len(pipes) == 1 else 0.6
        granted = min(share_milli // 100 * 100, limit)
        return [Rate(full * beside * BENT.speed_at(granted), granted, granted)] * len(pipes)

    monkeypatch.setattr(probing, "probes", asked)
    monkeypatch.setattr(probing, "undisturbed", rates)


def test_measure_speeds_makes_curves_of_granted_shares(device):
    told = []
    speeds = measure_speeds(CpuShares(1), SPEC, (230, 500, 1000), (2, 4), lambda: told.append(1))
    for kind in (speeds.training, speeds.inference):
        assert kind.alone.points == ((0, 0.0), (200, pytest.approx(0.32)), (500, 0.8), (1000, 1.0))
        assert kind.together == (
            CoRun(2, pytest.approx(2 * 0.6 * 0.8)),
            CoRun(4, pytest.approx(4 * 0.6 * 0.32)),
        )
    assert len(told) == 2 * (3 + 2)


@pytest.mark.parametrize(
    ("used", "granted", "busy"), [(1000, 1000, False), (455, 500, False), (440, 500, True)]
)
def test_rate_below_its_share_says_the_device_is_busy(used, granted, busy):
    rate = Rate(1.0, used, granted)
    if not busy:
        rate.require_undisturbed()
        return
    with pytest.raises(UserError, match=r"busy: a job with 50% of a GPU got 44%"):
        rate.require_undisturbed()


@pytest.mark.live
@pytest.mark.virtual
def test_probes_real_processes_answer_and_end():
    """The processes work; their rates depend on what else runs here, and a share may be caught up on."""
    with probes(CpuShares(2), SPEC, ["training", "inference"]) as (trainer, predictor):
        rates = rates_at([(trainer, 500), (predictor, 200)])
        resting, alone = rates_at([(trainer, 0), (predictor, 200)])
    assert [rate.granted_milli for rate in (*rates, alone)] == [500, 200, 200]
    assert min(rate.batches_per_s for rate in (*rates, alone)) > 0
    assert min(rate.used_milli for rate in (*rates, alone)) > 0
    assert rates[0].images_per_s / rates[0].batches_per_s == pytest.approx(96 / 13)
    assert alone.images_per_s / alone.batches_per_s == pytest.approx(6)
    assert alone.p99_ms >= alone.p50_ms > 0
    assert resting == Rate(0.0, 0, 0)
    assert not multiprocessing.active_children()


class Refusing(CpuShares):
    """Backend whose jobs cannot begin."""

    def attach_job(self, job):
        raise UserError(f"{job.role}: no daemon")


@pytest.mark.live
@pytest.mark.virtual
def test_probes_job_that_cannot_begin_says_why():
    with (
        pytest.raises(UserError, match="inference: no daemon"),
        probes(Refusing(1), SPEC, ["inference"]),
    ):
        pass


@pytest.mark.parametrize("device", [900], indirect=True)
def test_measure_speeds_without_whole_gpu_takes_the_highest_rate(device):
    curve = measure_speeds(CpuShares(1), SPEC, (500, 1000), (2,)).training.alone
    assert [share for share, _ in curve.points] == [0, 500, 900, 1000]
    assert curve.speed_at(900) == 1.0
    assert curve.speed_at(500) == pytest.approx(0.8 / BENT.speed_at(900))
