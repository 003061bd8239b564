"""Items of `make gpu-check`: the machine, what frames cost its cores, and memory."""

import importlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import av
import cv2
import numpy as np
import psutil
import torch
from gpu_check_card import DECODING, MACHINE, PREPARING, RENDERING
from gpu_check_costs import CLASSES, CLASSIFIER, OBJECTS, SIDE, time_calls
from gpu_check_process import Finding, Rig
from gpu_check_shares import CAMERAS, FPS, retraining_of

from ekya.core.profile import family_of
from ekya.gpu.mps.service import find_mps
from ekya.gpu.nvml import list_gpus
from ekya.models.edge.device_memory import begin_peak, is_out_of_memory, peak_bytes
from ekya.models.edge.footprint import footprint_of
from ekya.models.edge.forward import ForwardWay
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.multi_model import Predictors
from ekya.models.edge.predictor import on_device
from ekya.pipeline.sampled_sources import sample_sources
from ekya.pipeline.speed_jobs import random_images
from ekya.planning.sizing.gpu_memory import CONTEXT_BYTES, JobCrops, retraining_bytes
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.video import VideoSpec
from ekya.streams.synthetic import KINDS, CitySpec
from ekya.system.host import cpu_limit

MIB, WITHIN = 1 << 20, 1.2  # of a retraining's memory to its estimate


def describe_machine(rig: Rig) -> Iterator[Finding]:
    """Tells versions and cores, and whether there is MPS."""
    gpus, runtime = list_gpus(), importlib.import_module("onnxruntime")
    figures = {
        "gpu": gpus.gpus[0].name if gpus.gpus else gpus.why,
        "driver": gpus.driver,
        "mps": find_mps(gpus).why,
        "torch": torch.__version__,
        "onnxruntime": f"{runtime.__version__}, {', '.join(runtime.get_available_providers())}",
        "ray": metadata.version("ray"),
        "cores": cpu_limit(),
        "memory_bytes": psutil.virtual_memory().total,
    }
    if not rig.rehearses:
        properties = torch.cuda.get_device_properties(0)
        figures |= {"sms": properties.multi_processor_count, "gpu_memory_bytes": properties.total_memory}
    told = ", ".join(f"{name} {value}" for name, value in figures.items())
    yield Finding(MACHINE, "told", told, True, figures)


def measure_host(rig: Rig) -> Iterator[Finding]:
    """Measures what a frame takes of one core: to be read, and to be brought to the GPU."""
    city = CitySpec(seed=5, fps=FPS, width=640, height=360)
    specs: dict[str, CitySpec | VideoSpec] = {RENDERING: city}
    for size in ((640, 360), (1920, 1080)):
        name = DECODING.format("{}x{}".format(*size))
        specs[name] = VideoSpec(files=[draw_video(rig.out / f"{size[1]}p.mp4", city, size)])
    reading_ms = {name: 1e3 * one.reading_s for name, one in sample_sources(specs, KINDS).items()}
    for name, took_ms in reading_ms.items():
        yield Finding(name, "told", f"{took_ms:.2f} ms of a core", took_ms > 0, {"host_ms": took_ms})
    image, left = random_images(1, 640)[0][:360], np.linspace(0, 560, OBJECTS)
    boxes = np.stack([left, left * 0 + 120, left + 72, left * 0 + 200], axis=1).astype(np.float32)
    predictors = Predictors(rig.device, ForwardWay(graphs=not rig.rehearses))
    predictor = predictors.predictor_for(build_edge_model(CLASSES, 0, 0, CLASSIFIER))
    crops = crop_objects(image, boxes, SIDE)
    parts = {
        "cut_ms": lambda: crop_objects(image, boxes, SIDE),
        "copy_ms": lambda: on_device(crops, rig.device),
        "analyse_ms": lambda: predictor.predict(crops, SIDE),
    }
    took = {name: time_calls(rig, work, rig.pick(1.0, 0.0))["host_ms"] for name, work in parts.items()}
    host_ms, cores = took["cut_ms"] + took["analyse_ms"], cpu_limit()
    most = 1e3 * cores / (FPS * (host_ms + max(reading_ms.values())))
    yield Finding(
        PREPARING,
        f"cores for {CAMERAS} cameras of the dearest kind at {FPS:g} frames a second, without training",
        f"{'; '.join(f'{name} {value:.2f}' for name, value in took.items())}; {most:.0f} cameras",
        most >= CAMERAS or rig.rehearses,
        {"host_ms": host_ms, "cameras": most, **took},
    )


def draw_video(path: Path, city: CitySpec, size: tuple[int, int]) -> Path:
    """Draws two seconds of a city as H.264, as cameras send it, and returns the path."""
    frames = iter(city.open(KINDS).frames())
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=round(city.fps))
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for _ in range(round(2 * city.fps)):
            picture = cv2.resize(next(frames)[0].image, size)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="bgr24")))
        container.mux(stream.encode())
    return path


def measure_memory(rig: Rig) -> Iterator[Finding]:
    """Measures memory of CUDA, of a server with a model for each camera and graphs, and of a retraining."""
    before, cameras = _used_bytes(rig), rig.pick(CAMERAS, 2)
    torch.nn.Conv2d(8, 8, 3).to(rig.device)(torch.zeros(2, 8, 32, 32, device=rig.device)).sum().item()
    context = _used_bytes(rig) - before
    yield _of_memory("CUDA and its libraries take of a process", context, CONTEXT_BYTES)
    predictors = Predictors(rig.device, ForwardWay(graphs=not rig.rehearses, crops_a_pass=CAMERAS * OBJECTS))
    # Other seeds are other weights: no block is shared, as after a retraining of all of them.
    held = [predictors.predictor_for(build_edge_model(CLASSES, 0, seed)) for seed in range(cameras)]
    for predictor in held:
        predictor.predict(random_images(OBJECTS, SIDE), SIDE)
    yield _of_memory(f"a server of {cameras} ResNet18s as graphs holds", _used_bytes(rig) - before - context)
    del held, predictors, predictor
    begin_peak()
    kept = 0 if rig.rehearses else torch.cuda.memory_reserved()
    training = retraining_of(CLASSIFIER, 16, SIDE, rig.device)
    training.run_epoch()
    crops = JobCrops(training.epoch_crops, training.validation_crops)
    estimated = retraining_bytes(footprint_of(family_of(training.config), SIDE), training.config, crops)
    held_bytes = (peak_bytes() or kept) - kept
    yield _of_memory("a retraining of a ResNet18 holds", held_bytes, round(WITHIN * estimated))
    known, what = False, "it was granted"
    try:
        torch.empty(1 << 60, dtype=torch.uint8, device=rig.device)
    except RuntimeError as error:
        known, what = is_out_of_memory(error), type(error).__name__
    torch.ones(64, device=rig.device).sum().item()
    yield Finding("an allocation that cannot be", "known as such, and the process computes on", what, known)


def _of_memory(what: str, held_bytes: int, most_bytes: int = 0) -> Finding:
    expected = f"at most {most_bytes / MIB:.0f} MiB" if most_bytes else "told"
    told, met = f"{held_bytes / MIB:.0f} MiB", not most_bytes or held_bytes <= most_bytes
    return Finding(f"memory that {what}", expected, told, met, {"held_bytes": held_bytes})


def _used_bytes(rig: Rig) -> int:
    """Returns the memory in use on the GPU, or of this process."""
    if rig.rehearses:
        return int(psutil.Process().memory_info().rss)
    reader = importlib.import_module("ekya.gpu.window_meter").NvmlReader(list_gpus().gpus[0].uuid)
    return int(reader.read_counters().memory_used_bytes)
