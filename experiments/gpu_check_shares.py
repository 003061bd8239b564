"""Checks of `make gpu-check`: isolation, speed and resize time of jobs in green contexts."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from gpu_check_kernels import Kernels
from gpu_check_report import Finding

from ekya.gpu.backends.backend import ShareJob
from ekya.gpu.backends.gpu_streams import TorchStreams
from ekya.gpu.green.green_context_pool import GreenProcess, open_process
from ekya.gpu.green.handle import GreenHandle
from ekya.gpu.green.levels import Level, LevelPool, spans_ahead
from ekya.gpu.green.sm_driver import CudaCalls, CudaDriver, SmLayout

WITHIN = 0.03
"""Accepted relative deviation from an expected speed."""

KEPT = 0.9
"""Lowest accepted part of the speed alone that a job keeps beside another."""

DEVICE = "cuda"

RESIZE_LIMIT_MS = 1.0
RESIZES = 200
RESTARTS = 3

_BLOCKS_A_SM = 64
"""Blocks for each multiprocessor: two run at a time, so 32 rounds, which keeps the uneven end small."""

_ALONE_MS = 20.0
"""Approximate duration of one launch on all multiprocessors."""


def split() -> Iterator[Finding]:
    """Measures how the driver splits the GPU, and the time to create levels in advance."""
    began_s = time.perf_counter()
    process = _process()
    took_s = time.perf_counter() - began_s
    layout = process.levels.layout
    is_h200 = "H200" in torch.cuda.get_device_name(0)
    yield Finding(
        "multiprocessors and the smallest groups of them",
        "132 in groups of 8" if is_h200 else "groups of 2, 4 or 8",
        f"{layout.sms} in {layout.groups} groups of {layout.group_sms}, and {layout.rest_sms} over",
        (layout.sms, layout.group_sms) == (132, 8) if is_h200 else layout.group_sms in (2, 4, 8),
        {
            "sms": layout.sms,
            "group_sms": layout.group_sms,
            "groups": layout.groups,
            "rest_sms": layout.rest_sms,
        },
    )
    last = process.levels.usable(layout.groups - 1, 1).level
    asked = layout.group_sms + layout.rest_sms
    granted = 0 if last is None else last.sms
    yield Finding(
        "multiprocessors of the last group, with those that are over",
        f"{asked}",
        f"{granted}",
        granted == asked,
        {"asked_sms": asked, "granted_sms": granted},
    )
    levels = len(spans_ahead(layout))
    yield Finding(
        "levels made ahead and checked when the first job of a process attaches",
        "once a process",
        f"{levels} in {took_s:.1f} s",
        True,
        {"levels": levels, "took_s": took_s},
    )


def gate() -> Iterator[Finding]:
    """Runs the numeric gate at every number of multiprocessors that levels can have."""
    process = _process()
    layout = process.levels.layout
    for groups in range(1, layout.groups + 1):
        process.levels.usable(0, groups)
    failed = {sms: list(map(str, bad)) for sms, bad in process.levels.failed.items() if bad}
    checked = len(process.levels.failed)
    yield Finding(
        "products and convolutions on few multiprocessors agree with the CPU",
        "relative error under 0.01 and finite, in float32, float16 and bfloat16",
        f"{checked} numbers of multiprocessors checked, {len(failed)} fail"
        + "".join(f"; on {sms}: {', '.join(why)}" for sms, why in failed.items()),
        not failed,
        {"checked": checked, "failed": failed},
    )


def disjoint() -> Iterator[Finding]:
    """Checks the multiprocessors of two jobs of a process, and those of their forward and backward passes."""
    process, kernels = _process(), Kernels()
    with _jobs(process, 500, 500) as (one, other):
        ids = []
        for handle in (one, other):
            with handle.scope():
                ids.append(kernels.where(process.streams.current()))
        sms = [0 if handle.level is None else handle.level.sms for handle in (one, other)]
        yield Finding(
            "multiprocessors of two jobs of one process",
            "none in common, and as many as were granted",
            f"{len(ids[0])} of {sms[0]} and {len(ids[1])} of {sms[1]}, {len(ids[0] & ids[1])} in common",
            not ids[0] & ids[1] and [len(one) for one in ids] == sms,
            {"ids": [sorted(one) for one in ids], "granted_sms": sms},
        )
        with one.scope():
            forward, backward = _where_autograd_runs(kernels)
        yield Finding(
            "where a batch's forward and backward pass run",
            "on the job's multiprocessors, though the backward pass has a thread of its own",
            f"{len(forward - ids[0])} and {len(backward - ids[0])} elsewhere",
            forward <= ids[0] and backward <= ids[0],
            {"forward": sorted(forward), "backward": sorted(backward)},
        )


def speed() -> Iterator[Finding]:
    """Measures work that depends only on multiprocessors, at a quarter, half and three quarters of them."""
    pool, kernels, streams = LevelPool(CudaDriver(CudaCalls())), Kernels(), TorchStreams(0)
    layout = pool.layout
    blocks = _BLOCKS_A_SM * layout.sms
    rounds = _rounds(kernels, blocks)
    plain = _plain_stream()
    full_ms = _median_ms(streams, plain, lambda: kernels.compute(plain, blocks, rounds))
    for quarter in (1, 2, 3):
        level = pool.level(0, layout.groups * quarter // 4)
        ms = _median_ms(streams, level.stream, _computing(kernels, level, blocks, rounds))
        expected, measured = level.sms / layout.sms, full_ms / ms
        yield Finding(
            f"speed on {level.sms} of {layout.sms} multiprocessors",
            f"{expected:.3f} of full speed, within {WITHIN:.0%}",
            f"{measured:.3f}",
            abs(measured / expected - 1) <= WITHIN,
            {"sms": level.sms, "speed": measured, "expected": expected, "ms": ms, "full_ms": full_ms},
        )


def beside() -> Iterator[Finding]:
    """Measures two jobs of one process at the same time, on three quarters and a quarter."""
    pool, kernels, streams = LevelPool(CudaDriver(CudaCalls())), Kernels(), TorchStreams(0)
    layout = pool.layout
    most = layout.groups * 3 // 4
    levels = [pool.level(0, most), pool.level(most, layout.groups - most)]
    rounds = _rounds(kernels, _BLOCKS_A_SM * layout.sms)
    works = [_computing(kernels, level, _BLOCKS_A_SM * level.sms, rounds) for level in levels]
    alone = [_median_ms(streams, level.stream, work) for level, work in zip(levels, works, strict=True)]
    together = _together_ms(streams, levels, works, times=20)
    kept = [one / both for one, both in zip(alone, together, strict=True)]
    yield Finding(
        f"{levels[0].sms} + {levels[1].sms} multiprocessors at the same time, in one process",
        f"each at least {KEPT:.0%} of its speed alone",
        f"{kept[0]:.1%} and {kept[1]:.1%}",
        min(kept) >= KEPT,
        {"sms": [one.sms for one in levels], "alone_ms": alone, "together_ms": together, "kept": kept},
    )


def resize() -> Iterator[Finding]:
    """Resizes a running job between a quarter and three quarters, with its weights on the GPU."""
    process, kernels = _process(), Kernels()
    layout = process.levels.layout
    model = _model().to(DEVICE)
    pid, addresses = os.getpid(), [one.data_ptr() for one in model.parameters()]
    batch = torch.randn(64, 1024, device=DEVICE)
    torch.cuda.synchronize()
    with _jobs(process, _quarter(layout, 1)) as (handle,):
        changes_ms, first_batches_ms, ids = [], [], {}
        for turn in range(RESIZES):
            quarters = 3 if turn % 2 == 0 else 1
            began = time.perf_counter()
            handle.resize(_quarter(layout, quarters))
            changes_ms.append(1000 * (time.perf_counter() - began))
            with handle.scope():
                model(batch)
                torch.cuda.current_stream().synchronize()
            first_batches_ms.append(1000 * (time.perf_counter() - began))
            if turn >= RESIZES - 2:
                with handle.scope():
                    ids[quarters] = len(kernels.where(process.streams.current()))
        kept = pid == os.getpid() and addresses == [one.data_ptr() for one in model.parameters()]
    median, p99 = statistics.median(changes_ms), statistics.quantiles(changes_ms, n=100)[98]
    yield Finding(
        "a resize in the running process",
        f"median under {RESIZE_LIMIT_MS:g} ms",
        f"median {median:.3f} ms, p99 {p99:.3f} ms, {len(changes_ms)} resizes; "
        f"to the end of the first batch {statistics.median(first_batches_ms):.3f} ms",
        median < RESIZE_LIMIT_MS,
        {"median_ms": median, "p99_ms": p99, "first_batch_ms": statistics.median(first_batches_ms)},
    )
    yield Finding(
        "process and addresses of the weights after all resizes",
        "as before",
        "as before" if kept else "changed",
        kept,
    )
    expected = {quarters: layout.groups * quarters // 4 * layout.group_sms for quarters in (1, 3)}
    yield Finding(
        "multiprocessors on which batches really ran after a resize",
        " and ".join(str(one) for one in expected.values()),
        f"{ids[1]} and {ids[3]}",
        all(expected[one] <= ids[one] <= expected[one] + layout.rest_sms for one in ids),
        {"sms": ids},
    )


def restart() -> Iterator[Finding]:
    """Measures the same change by a new process: from the decision to the end of the first batch."""
    times_s = []
    for _ in range(RESTARTS):
        began_s = time.perf_counter()
        subprocess.run([sys.executable, __file__], check=True, stdout=subprocess.DEVNULL, timeout=60)
        times_s.append(time.perf_counter() - began_s)
    median_s = statistics.median(times_s)
    yield Finding(
        "the same change by a restart, to the end of the first batch",
        "what stands beside the resize",
        f"median {median_s:.2f} s of {RESTARTS}",
        True,
        {"median_s": median_s, "all_s": times_s},
    )


def main() -> None:
    """Starts at another share: CUDA, weights, one batch."""
    model = _model().to(DEVICE)
    model(torch.randn(64, 1024, device=DEVICE))
    torch.cuda.synchronize()


@cache
def _process() -> GreenProcess:
    """Returns the green contexts that the checks of a process share, since they take seconds to create."""
    return open_process()


def _model() -> torch.nn.Module:
    # As many weights as a ResNet18 has, about 45 MB.
    return torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(11)))


def _quarter(layout: SmLayout, quarters: int) -> int:
    return layout.grouping.share_milli(layout.groups * quarters // 4)


@contextmanager
def _jobs(process: GreenProcess, *shares: int) -> Iterator[tuple[GreenHandle, ...]]:
    handles = tuple(
        GreenHandle(
            process.levels, process.streams, process.claims(), ShareJob(f"check {place}", "retraining", one)
        )
        for place, one in enumerate(shares)
    )
    try:
        yield handles
    finally:
        for handle in handles:
            handle.release()


def _where_autograd_runs(kernels: Kernels) -> tuple[set[int], set[int]]:
    seen: dict[str, set[int]] = {}

    class Where(torch.autograd.Function):
        @staticmethod
        def forward(_context, value):
            seen["forward"] = kernels.where(torch.cuda.current_stream().cuda_stream)
            return value * 2

        @staticmethod
        def backward(_context, gradient):
            seen["backward"] = kernels.where(torch.cuda.current_stream().cuda_stream)
            return gradient * 2

    Where.apply(torch.ones(1, device=DEVICE, requires_grad=True)).sum().backward()
    return seen["forward"], seen["backward"]


def _computing(kernels: Kernels, level: Level, blocks: int, rounds: int) -> Callable[[], None]:
    return lambda: kernels.compute(level.stream, blocks, rounds)


def _plain_stream() -> int:
    """Returns a stream of torch's pool, in the primary context; torch keeps it."""
    return int(torch.cuda.Stream().cuda_stream)


def _rounds(kernels: Kernels, blocks: int) -> int:
    """Returns the number of rounds with which a launch on the whole GPU takes about ``_ALONE_MS``."""
    streams, rounds, plain = TorchStreams(0), 1000, _plain_stream()
    ms = _median_ms(streams, plain, lambda: kernels.compute(plain, blocks, rounds))
    return max(1, round(rounds * _ALONE_MS / ms))


def _median_ms(streams: TorchStreams, stream: int, work: Callable[[], None], times: int = 9) -> float:
    """Returns the median time of consecutive launches, without the first one."""
    streams.enter_stream(stream)
    took: list[float] = []
    for _ in range(times + 1):
        began = streams.record_mark()
        work()
        ended = streams.record_mark()
        ended.wait()
        took.append(ended.ns_since(began) / 1e6)
    return statistics.median(took[1:])


def _together_ms(
    streams: TorchStreams, levels: list[Level], works: list[Callable[[], None]], times: int
) -> list[float]:
    """Returns the time of a launch on each level while both are busy; both have about the same work."""
    marks = []
    for level in levels:
        streams.enter_stream(level.stream)
        marks.append([streams.record_mark()])
    for _ in range(times):
        for level, work, own in zip(levels, works, marks, strict=True):
            streams.enter_stream(level.stream)
            work()
            own.append(streams.record_mark())
    for own in marks:
        own[-1].wait()
    # The first and the last launches of each run partly alone on the GPU.
    inner = [own[2:-1] for own in marks]
    return [(own[-1].ns_since(own[0])) / 1e6 / (len(own) - 1) for own in inner]


if __name__ == "__main__":
    main()
