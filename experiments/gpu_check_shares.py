"""Items of `make gpu-check`: trainers side by side, an inference server beside four, and hot swaps."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor as Pool
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from gpu_check_card import ALONE, CAPPED, FREE, LARGER, SERVING, STEPS, TRAINING
from gpu_check_costs import CLASSES, CLASSIFIER, FRAME_SIDES, OBJECTS, SIDE
from gpu_check_mps import OK, join_server, mps_clients
from gpu_check_process import Finding, Rig

from ekya.core.configs import RetrainConfig
from ekya.gpu.mps.backend import PERCENTAGE
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.checkpoints import from_bytes, to_bytes
from ekya.models.edge.forward import TORCH, ForwardWay
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.multi_model import AnyPredictor, Predictors
from ekya.models.training.epochs import steps_in_epoch
from ekya.models.training.labelled import LabelledCrops
from ekya.models.training.trainer import Compute, Retraining, RetrainingData
from ekya.pipeline.speed_jobs import random_frames, random_images

MODELS: Mapping[str, int] = {CLASSIFIER: 16, FASTESTDET: 8}
"""Edge models, with the batch in which they train."""

TRAINERS, CAMERAS, FPS, BESIDE, LATE_PART = (1, 2, 4, 8), 16, 10.0, 4, 0.05
"""Numbers of trainers; cameras, their rate, trainers beside their server, and the part that may be late."""

GREEN, GREEN_PART, HELPS = "green contexts", 0.75, 0.8
"""Trainers with green contexts share this part of the multiprocessors, since each takes the first ones. They
help if the server's 99th percentile is below ``HELPS`` of that without them."""

SERVES_MS, PAUSE_MS = 1000.0, 1.0
"""Most time until new weights serve, and most pause before."""

Figures, ANSWER_S = dict[str, float], 60.0


def begin_work(joins: bool) -> str:
    """Lets this process take one thread, and makes it a client of MPS if it ``joins``; returns ``OK``."""
    torch.set_num_threads(1)
    return join_server() if joins else OK


@contextmanager
def workers(environments: Sequence[Mapping[str, str]]) -> Iterator[list[Pool]]:
    """Starts a process with each environment, all at once, and ends them after the block."""
    # Not by fork: CUDA cannot be used in a child of a process that has started it.
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pools, begun = [], []
        for environment in environments:
            pools.append(stack.enter_context(Pool(1, spawn)))
            with patch.dict(os.environ, environment):
                begun.append(pools[-1].submit(begin_work, bool(environment)))
        said = {one.result(ANSWER_S) for one in begun}
        if said != {OK}:
            raise RuntimeError("; ".join(said))
        yield pools


def call_all(pools: Sequence[Pool], function: Callable[..., Any], *given: object) -> list[Any]:
    """Lets processes call a function at the same time, and returns their results; raises what they raise."""
    return [asked.result(ANSWER_S) for asked in [pool.submit(function, *given) for pool in pools]]


def work_of(rig: Rig, architecture: str) -> tuple[str, int, int, str]:
    """Returns architecture, batch, side in pixels and device of a training."""
    side = SIDE if architecture == CLASSIFIER else rig.pick(*FRAME_SIDES)
    return architecture, MODELS[architecture], side, rig.device


def images_of(architecture: str, side: int, frames: int) -> np.ndarray:
    """Returns what is analysed of frames: crops of their objects, or the frames."""
    return random_images(frames * (OBJECTS if architecture == CLASSIFIER else 1), side)


def train(architecture: str, batch: int, side: int, device: str, seconds: float, sms: int = 0) -> Figures:
    """Trains for some seconds, in whole epochs, with ``sms`` in a green context of as many."""
    retraining, epochs = retraining_of(architecture, batch, side, device), 0
    images, steps = retraining.epoch_crops, steps_in_epoch(retraining.epoch_crops, batch)
    with green_scope(sms):
        began_s, host_s = time.perf_counter(), time.process_time()
        while epochs == 0 or time.perf_counter() - began_s < seconds:
            retraining.run_epoch()
            epochs += 1
        if device != "cpu":
            torch.cuda.current_stream().synchronize()
        took_s, host_s = time.perf_counter() - began_s, time.process_time() - host_s
    steps *= epochs
    return {"images_per_s": epochs * images / took_s, "step_s": took_s / steps, "host_s": host_s / steps}


@lru_cache
def retraining_of(architecture: str, batch: int, side: int, device: str) -> Retraining:
    """Returns a prepared training of all blocks, of ``STEPS`` batches an epoch."""
    rows = np.arange(STEPS * batch)
    crops = LabelledCrops(random_images(len(rows), side), rows % len(CLASSES), rows, rows)
    labelled = crops if architecture == CLASSIFIER else random_frames(len(rows), side, CLASSES)
    data = RetrainingData(labelled, labelled.select_rows(rows[::STEPS]), CLASSES, seed=0)
    config, model = RetrainConfig(1, batch, 0, 5, 1.0), build_edge_model(CLASSES, 0, 0, architecture)
    retraining = Retraining(model, config, data, Compute(device))
    retraining.prepare_training()
    return retraining


@contextmanager
def green_scope(sms: int) -> Iterator[None]:
    """Runs the block on the first multiprocessors, by torch's own green contexts, whose API has changed."""
    context = torch.cuda.green_contexts.GreenContext.create(num_sms=sms) if sms else None
    if context is None:
        yield
    elif hasattr(context, "Stream"):
        with torch.cuda.stream(context.Stream()):
            yield
    else:
        context.set_context()
        yield
        context.pop_context()


def measure_trainers(rig: Rig) -> Iterator[Finding]:
    """Measures K trainers, none capped, and each capped at its part of the GPU."""
    seconds, counts = rig.pick(1.2, 0.0), rig.pick(TRAINERS, (1, 2))
    with mps_clients() as (client, why):
        caps = [] if why else [count for count in counts[1:] for _ in range(count)]
        capped = [{**client, PERCENTAGE: str(100 // count)} for count in caps]
        with workers([client] * counts[-1] + capped) as started:
            free, held = started[: counts[-1]], list(zip(caps, started[counts[-1] :], strict=True))
            for architecture in MODELS:
                work = work_of(rig, architecture)
                larger = (architecture, LARGER * work[1], *work[2:])
                call_all(started, train, *work, 0.0)
                call_all(free[:1], train, *larger, 0.0)
                ways: dict[str, dict[int, list[Figures]]] = {FREE: {}, CAPPED: {}}
                for count in counts:
                    ways[FREE][count] = call_all(free[:count], train, *work, seconds)
                    own = [worker for cap, worker in held if cap == count]
                    ways[CAPPED] |= {count: call_all(own, train, *work, seconds)} if own else {}
                yield of_trainers(architecture, ways, *call_all(free[:1], train, *larger, seconds), why)


def of_trainers(
    architecture: str, ways: Mapping[str, Mapping[int, list[Figures]]], larger: Figures, why: str
) -> Finding:
    """Returns the finding of trainers by way and number, and of one alone with a larger batch."""
    (alone,) = ways[FREE][1]
    told, most = (
        [f"alone {1e3 * alone['step_s']:.2f} ms a step, {1e3 * alone['host_s']:.2f} of a core", why],
        0.0,
    )
    for way, counts in ways.items():
        totals = {count: sum(one["images_per_s"] for one in found) for count, found in counts.items()}
        told += [f"{way} K={count} {total:.0f} images/s" for count, total in totals.items()]
        most = max([most, *totals.values()])
    return Finding(
        TRAINING.format(architecture),
        "several together train more images a second than one alone",
        "; ".join(filter(None, told)),
        most > alone["images_per_s"],
        {"batch": MODELS[architecture], "alone": alone, "larger": larger, "trainers": ways},
    )


def serve(architecture: str, side: int, device: str, seconds: float) -> Figures:
    """Serves cameras whose frames arrive by the clock; takes all that wait, of each camera the newest."""
    predictor, images = _server(architecture, side, device), images_of(architecture, side, CAMERAS)
    each, step_s, taken = len(images) // CAMERAS, 1 / (FPS * CAMERAS), 0
    latencies_ms, batches_ms = [], []
    due, began_s = max(round(seconds / step_s), CAMERAS), time.perf_counter()
    while taken < due:
        # Frame n comes n steps after the begin, from camera n modulo their number.
        arrived = min(int((time.perf_counter() - began_s) / step_s) + 1, due)
        if arrived == taken:
            time.sleep(max(began_s + taken * step_s - time.perf_counter(), 0.0))
            continue
        waiting, batch_s = range(max(taken, arrived - CAMERAS), arrived), time.perf_counter()
        predictor.predict(images[: len(waiting) * each], side)
        now_s, taken = time.perf_counter(), arrived
        batches_ms.append(1e3 * (now_s - batch_s))
        latencies_ms += [1e3 * (now_s - began_s - frame * step_s) for frame in waiting]
    p50_ms, p99_ms = np.percentile(latencies_ms, (50, 99)).tolist()
    # Late is an answer after the camera's next frame, or none.
    late = due - sum(latency <= 1e3 / FPS for latency in latencies_ms)
    return {"due": due, "late": late, "p50_ms": p50_ms, "p99_ms": p99_ms, "batch_ms": median(batches_ms)}


@lru_cache
def _server(architecture: str, side: int, device: str) -> AnyPredictor:
    """Returns a predictor, on a GPU with graphs for every number of frames."""
    crops = CAMERAS * OBJECTS
    way = ForwardWay(graphs=device != "cpu", crops_a_pass=crops, images_a_pass=CAMERAS, engine=TORCH)
    predictor = Predictors(device, way).predictor_for(build_edge_model(CLASSES, 0, 0, architecture))
    for frames in (1, 2, 4, 8, CAMERAS):
        predictor.predict(images_of(architecture, side, frames), side)
    return predictor


def measure_server(rig: Rig) -> Iterator[Finding]:
    """Measures the server alone, and beside trainers without shares, under caps, and in green contexts."""
    seconds, count = rig.pick(2.5, 0.2), rig.pick(BESIDE, 1)
    with mps_clients() as (client, why):
        # Priority 1 is below normal.
        cap = {**client, PERCENTAGE: str(100 // BESIDE), "CUDA_MPS_CLIENT_PRIORITY": "1"}
        with workers([client] * (1 + count) + [cap] * (0 if why else count)) as (server, *trainers):
            for architecture in MODELS:
                work = work_of(rig, architecture)
                call_all(trainers, train, *work, 0.0)
                ((sms, refused),) = call_all([server], find_green_sms, rig.rehearses)
                ways: dict[str, tuple[list[Pool], int]] = {ALONE: ([], 0), FREE: (trainers[:count], 0)}
                ways |= {} if why else {CAPPED: (trainers[count:], 0)}
                ways |= {GREEN: (trainers[:count], sms)} if sms else {}
                rows: dict[str, Figures] = {}
                for way, (own, sms) in ways.items():
                    asked = [trainer.submit(train, *work, seconds, sms) for trainer in own]
                    (rows[way],) = call_all([server], serve, architecture, *work[2:], seconds)
                    rows[way]["images_per_s"] = sum(one.result(ANSWER_S)["images_per_s"] for one in asked)
                yield from of_server(architecture, rows, why, refused)


def find_green_sms(rehearses: bool) -> tuple[int, str]:
    """Returns the multiprocessors for trainers in green contexts, a multiple of 8; or 0, and why."""
    try:
        sms = 0 if rehearses else torch.cuda.get_device_properties(0).multi_processor_count
        with green_scope(sms := int(GREEN_PART * sms) // 8 * 8):
            return sms, "" if sms else "a CPU has none"
    except (ImportError, AttributeError, TypeError, RuntimeError) as error:
        return 0, f"{type(error).__name__}: {error}".splitlines()[0]


def of_server(architecture: str, rows: Mapping[str, Figures], why: str, refused: str) -> Iterator[Finding]:
    """Yields how many frames were late by way, and whether green contexts should come back."""
    told = [
        f"{way}: {row['late']} of {row['due']} late, p50 {row['p50_ms']:.3g} ms, p99 {row['p99_ms']:.3g} ms, "
        f"{row['images_per_s']:.0f} images/s trained"
        for way, row in rows.items()
    ]
    chosen = FREE if why else CAPPED
    yield Finding(
        SERVING.format(architecture),
        f"at most {LATE_PART:.0%} of the frames late with {chosen}",
        "; ".join(filter(None, [*told, why])),
        rows[chosen]["late"] <= LATE_PART * rows[chosen]["due"],
        {"ways": rows, "slowed_to": rows[ALONE]["batch_ms"] / rows[chosen]["batch_ms"]},
    )
    name = f"{GREEN} of torch for trainers beside a {architecture}"
    expected = f"no help, so they stay out: p99 at least {HELPS:.0%} of that with {chosen}"
    part = rows[GREEN]["p99_ms"] / rows[chosen]["p99_ms"] if GREEN in rows else None
    measured = f"not offered: {refused}" if part is None else f"{part:.0%} of it"
    yield Finding(name, expected, measured, part if part is None else part >= HELPS, {"part": part})


def make_weights(architecture: str, seed: int) -> bytes:
    """Returns the weights of a model."""
    return to_bytes(build_edge_model(CLASSES, 0, seed, architecture))


def swap_weights(architecture: str, side: int, device: str, weights: bytes) -> tuple[float, float]:
    """Takes weights while others serve; returns milliseconds until they do, and of the pause before."""
    predictors, new = Predictors(device, ForwardWay(engine=TORCH)), []
    images = images_of(architecture, side, 1)
    old = predictors.predictor_for(build_edge_model(CLASSES, 0, 99, architecture))
    old.predict(images, side)
    thread = threading.Thread(target=lambda: new.append(predictors.predictor_for(from_bytes(weights))))
    began_s = ended_s = time.perf_counter()
    thread.start()
    while not new and thread.is_alive():
        old.predict(images, side)
        ended_s = time.perf_counter()
    begins_s = time.perf_counter()
    new[0].predict(images, side)
    return 1e3 * (begins_s - began_s), 1e3 * (begins_s - ended_s)


def measure_swaps(rig: Rig) -> Iterator[Finding]:
    """Measures new weights from a trainer's process to a serving one, by the host's memory."""
    with mps_clients() as (client, why), workers([client] * 2) as (trainer, server):
        for architecture in MODELS:
            serves_ms, pauses_ms = [], []
            for seed in range(rig.pick(3, 1)):
                began_s = time.perf_counter()
                (weights,) = call_all([trainer], make_weights, architecture, seed)
                made_ms = 1e3 * (time.perf_counter() - began_s)
                given = (architecture, *work_of(rig, architecture)[2:], weights)
                ((took_ms, pause_ms),) = call_all([server], swap_weights, *given)
                serves_ms.append(made_ms + took_ms)
                pauses_ms.append(pause_ms)
            told = f"after {max(serves_ms):.0f} ms at most, pause {median(pauses_ms):.3f} ms at the median"
            yield Finding(
                f"new weights of a {architecture}",
                f"serve within {SERVES_MS:g} ms, after a pause of at most {PAUSE_MS:g} ms",
                "; ".join(filter(None, [told, why])),
                max(serves_ms) <= SERVES_MS and median(pauses_ms) <= PAUSE_MS,
                {"serves_ms": serves_ms, "pauses_ms": pauses_ms},
            )
