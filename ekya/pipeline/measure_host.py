"""Measures the cost of a fleet's work on this machine before a run: frames, training and labelling.

Runs as the child process of ``CostProbe``: reads a fleet from standard input, and writes its costs to a file.
Open classes are found first. The self-test's choice of how to run forward passes is read from the user's
cache, or made and cached.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, cycle, islice, pairwise
from pathlib import Path
from statistics import median

import cv2
import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from pydantic import TypeAdapter

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import parse_fleet
from ekya.config.sizing import resolutions_to_measure
from ekya.core.configs import GOLDEN_RESOLUTION, REPLAY_RATIO, RetrainConfig
from ekya.core.errors import UserError
from ekya.core.host import HostCosts, StreamCosts, host_part_s
from ekya.core.profile import Family, FamilyCost, family_of
from ekya.core.units import StreamId
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.forward import MOST_IMAGES, SelfTest
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.multi_model import AnyPredictor, Predictors
from ekya.models.edge.self_test import choose_way, device_clock
from ekya.models.golden.detections import Question
from ekya.models.golden.golden_model import GoldenModel, learn_layout, open_golden
from ekya.models.golden.spec import FILE
from ekya.models.proposer import Proposer
from ekya.models.training.epochs import steps_in_epoch
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import VALIDATION_FRACTION, Examples, LabelledCrops
from ekya.models.training.trainer import Compute, Retraining, RetrainingData
from ekya.pipeline.base_model import base_model, teacher_warnings
from ekya.pipeline.costs import gpus_of
from ekya.pipeline.device_scopes import DeviceScopes
from ekya.pipeline.discover_classes import fleet_classes, with_classes
from ekya.pipeline.first_look import (
    has_foreign_labels,
    look_at_streams,
    sentences_of,
    streams_to_look_at,
)
from ekya.pipeline.gpu_facts import trainers_per_gpu
from ekya.pipeline.host_probe import ProbedHost
from ekya.pipeline.inference import FrameSteps
from ekya.pipeline.kept_measurements import SELF_TESTS, self_test_key
from ekya.pipeline.sampled_sources import MOST_SOURCES, SampledSource, sample_sources
from ekya.pipeline.setup import crop_side, drift_monitor, proposer_for, stream_setup, typical_images
from ekya.pipeline.speed_jobs import random_frames, random_images
from ekya.streams.ingest.crops import square_frame
from ekya.streams.ingest.motion import BoxFlow
from ekya.system.files import write_text_atomic

_LAYOUT_FRAMES = 8
_REPEATS = 5
_EPOCHS = 2
_TRAINING_CROPS = 48
# With replayed ones a batch of eight. A frame takes a tenth of a second, and a run waits for this.
_TRAINING_FRAMES = 5
_LABELLED_OBJECTS = 8
_LABELLED_PICTURES = 4
_FRAMES_IN_PASS = 8


class Timer:
    """Times calls on a device: thread CPU time, or wall time until a GPU has finished."""

    def __init__(self, device: str) -> None:
        self._clock = device_clock(device)
        self.longest_s = 0.0
        """The longest call so far."""

    def seconds(self, work: Callable[[], object], repeats: int = _REPEATS) -> float:
        """Returns the median time of a call, after one untimed call."""
        work()
        took = []
        for _ in range(repeats):
            began = self._now()
            work()
            took.append(self._now() - began)
        return median(took)

    def batch_s(self, work: Callable[[], object]) -> float:
        """Times a batch in which a job cannot be interrupted as ``seconds``, and updates ``longest_s``."""
        took_s = self.seconds(work)
        self.longest_s = max(self.longest_s, took_s)
        return took_s

    def _now(self) -> float:
        return self._clock()


def main() -> None:
    """Reads the fleet from standard input and writes the result to the file in the first argument."""
    given = json.loads(sys.stdin.buffer.read())
    try:
        fleet = parse_fleet(yaml.safe_load(given["fleet"]), "fleet", (Path(),))
        probed = probe_host(fleet, given["device"], given["cores"], given["seed"], again=given["again"])
        result = TypeAdapter(ProbedHost).dump_python(probed, mode="json")
    except UserError as error:
        result = {"refused": str(error)}
    write_text_atomic(Path(sys.argv[1]), json.dumps(result))


def probe_host(fleet: FleetConfig, device: str, cores: float, seed: int, *, again: bool) -> ProbedHost:
    """Measures all costs on one thread; ``again`` repeats a cached self-test.

    Raises:
        UserError: a file of the fleet cannot be read, or is not valid.
    """
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    fleet = with_classes(fleet)
    streams = streams_to_look_at(fleet)
    sampled = sample_sources(
        {stream.id: stream.source for stream in fleet.streams},
        fleet_classes(fleet),
        also=[stream.id for stream in streams],
        labelled=has_foreign_labels(fleet),
    )
    # The first frames of all, before the second of any.
    shown = chain.from_iterable(zip(*(one.frames for one in sampled.values() if one.frames), strict=False))
    layout = learn_layout(fleet.golden, (frame.image for frame in islice(shown, _LAYOUT_FRAMES)))
    spec = fleet.golden if layout is None else fleet.golden.model_copy(update={"layout": layout})
    golden = open_golden(spec, fleet_classes(fleet), fleet.edge.task, device)
    odd = sentences_of(look_at_streams(fleet, streams, sampled, golden))
    tested = kept_self_test(fleet.edge.model, device, resolutions_to_measure(fleet), again=again)
    costs = _costs(fleet, device, cores, seed, tested, sampled, golden)
    return ProbedHost(
        fleet_classes(fleet),
        costs,
        tested,
        tuple(teacher_warnings(fleet)),
        odd,
        layout,
        None if fleet.golden.model == FILE else str(golden.runs_on),
    )


def _costs(
    fleet: FleetConfig,
    device: str,
    cores: float,
    seed: int,
    tested: SelfTest,
    sampled: dict[StreamId, SampledSource],
    golden: GoldenModel,
) -> HostCosts:
    timer, side, scopes = Timer(device), crop_side(fleet), DeviceScopes(device)
    model = base_model(fleet, seed)
    detects = fleet.edge.task is Task.DETECT
    predictor = Predictors(device, tested.way).predictor_for(model)
    picture = next(iter(sampled.values())).pictures[0].image
    images = square_frame(picture, side) if detects else random_images(round(typical_images(fleet)), side)
    on_gpu = torch.device(device).type == "cuda"
    passing_s = (batched_gpu_s if on_gpu else passing_gpu_s)(
        predictor, images, resolutions_to_measure(fleet), timer
    )
    label_s = 0.0
    if fleet.golden.model != FILE:
        label_s = (frame_label_gpu_s if detects else label_gpu_s)(golden, picture, timer)
    golden_s = {GOLDEN_RESOLUTION: label_s} if fleet.offers_golden else {}
    known: dict[StreamId, StreamCosts] = {}
    # The others are assumed as expensive as the most expensive of these.
    timed = list({id(one): one for one in sampled.values()}.values())[:MOST_SOURCES]
    for stream in fleet.streams:
        if any(sampled.get(stream.id) is one for one in timed):
            shown, proposer = sampled[stream.id], proposer_for(fleet, stream, scopes)
            finding_s = 0.0 if detects else finding_gpu_s(shown, proposer, timer)
            known[stream.id] = StreamCosts(
                shown.fps * stream.play.speed,
                {resolution: finding_s + took_s for resolution, took_s in passing_s.items()} | golden_s,
                finding_s,
                per_object=not detects,
                following_gpu_s={GOLDEN_RESOLUTION: following_gpu_s(shown, timer)} if golden_s else {},
                length_s=None if shown.length_s is None else stream.play.length_of(shown.length_s),
                reading_s=shown.reading_s,
            )
    costs = HostCosts(
        of_all_streams(known, [stream.id for stream in fleet.streams]),
        label_s,
        family_costs(model, fleet.retrain_configs(), side, device, timer),
        cores,
        timer.longest_s,
    )
    if not on_gpu:
        return costs
    frame_s = max(_handing_over_s(fleet, place, sampled) for place in range(len(fleet.streams)))
    gpus = min(gpus_of(fleet), torch.cuda.device_count())
    trainers = gpus * trainers_per_gpu(cores, gpus)
    return replace(costs, host_part_s=host_part_s(frame_s, cores, costs.reading_cores, trainers, gpus))


def _handing_over_s(fleet: FleetConfig, place: int, sampled: Mapping[StreamId, SampledSource]) -> float:
    """Times finding, keeping and cutting a frame's objects on this thread; 0.0 without a sample."""
    stream = fleet.streams[place]
    shown = sampled.get(stream.id)
    if shown is None:
        return 0.0
    setup = stream_setup(fleet, place, shown.fps, seed=0)
    monitor = drift_monitor(fleet)
    steps = FrameSteps(proposer_for(fleet, stream), setup.collector(), fleet.edge.task, monitor=monitor)
    side = max(resolutions_to_measure(fleet))

    def hand_over() -> None:
        for frame in shown.pictures:
            found = steps.propose(frame)
            steps.collect(frame, found)
            steps.cut(frame, found.boxes, side)

    return Timer("cpu").seconds(hand_over) / len(shown.pictures)


def kept_self_test(architecture: str, device: str, sides: Sequence[int], *, again: bool = False) -> SelfTest:
    """Returns the fastest way to run forward passes on this machine, and the reasons.

    Args:
        architecture: of the edge model.
        device: torch's name.
        sides: resolutions of Λ in pixels.
        again: run the test even if a result is kept.
    """
    key = self_test_key(device, architecture, sides)
    kept = None if again else SELF_TESTS.load(key)
    if kept is not None:
        return kept
    made = choose_way(architecture, device, sides)
    SELF_TESTS.save(key, made)
    return made


def finding_gpu_s(sampled: SampledSource, proposer: Proposer, timer: Timer) -> float:
    """Times how a camera's objects are found in its frames; returns seconds a frame."""
    frames = cycle(sampled.pictures)

    return timer.batch_s(lambda: proposer.propose_boxes(next(frames)))


def following_gpu_s(sampled: SampledSource, timer: Timer) -> float:
    """Times how optical flow follows a typical number of boxes into the next frame; returns seconds."""
    images = [frame.image for frame in sampled.pictures]
    # Boxes cannot be followed into a picture of another size; into the same picture it costs as much.
    alike = (pair for pair in pairwise(images) if pair[0].shape == pair[1].shape)
    before, after = next(alike, (images[0], images[0]))
    size = np.array(before.shape[1::-1] * 2, np.float32)
    boxes, flow = random_frames(1, 8, ("object",)).objects[0].boxes * size, BoxFlow()

    def follow() -> None:
        # Each time from all boxes: those that leave the picture are dropped.
        flow.start_boxes(before, boxes)
        flow.follow_boxes(after)

    # Timings vary, so the difference of two close ones may be negative.
    return max(timer.seconds(follow) - timer.seconds(lambda: flow.start_boxes(before, boxes)), 0.0)


def passing_gpu_s(
    predictor: AnyPredictor, images: NDArray[np.uint8], sides: Sequence[int], timer: Timer
) -> dict[int, float]:
    """Times the first serving model on the images of a typical frame; returns seconds per resolution of Λ.

    Args:
        predictor: of the model.
        images: (N, S, S, 3) uint8: crops of the frame's objects, or the frame itself for a detector.
        sides: the resolutions, in pixels.
        timer: of the device.
    """
    return {resolution: timer.batch_s(partial(predictor.predict, images, resolution)) for resolution in sides}


def batched_gpu_s(
    predictor: AnyPredictor, images: NDArray[np.uint8], sides: Sequence[int], timer: Timer
) -> dict[int, float]:
    """Times passes on a GPU as ``passing_gpu_s``, for frames that go through a server in batches.

    A pass of a few images is launches, between which a GPU waits. So a frame takes what it adds to a pass,
    and its part of the rest of a full one.
    """
    many = np.concatenate([images] * _FRAMES_IN_PASS)
    costs = {}
    for resolution in sides:
        one_s = timer.batch_s(partial(predictor.predict, images, resolution))
        all_s = timer.batch_s(partial(predictor.predict, many, resolution))
        added_s = max(all_s - one_s, 0.0) / (_FRAMES_IN_PASS - 1)
        costs[resolution] = added_s + max(one_s - added_s, 0.0) / MOST_IMAGES
    return costs


def of_all_streams(
    known: Mapping[StreamId, StreamCosts], streams: Sequence[StreamId]
) -> dict[StreamId, StreamCosts]:
    """Returns costs of all streams; an unmeasured one costs as much as the most expensive measured one."""
    dearest = max(known.values(), key=lambda costs: costs.fps * max(costs.frame_gpu_s.values()))
    return {stream: known.get(stream, dearest) for stream in streams}


def family_costs(
    model: EdgeModel, configs: Sequence[RetrainConfig], side: int, device: str, timer: Timer
) -> tuple[FamilyCost, ...]:
    """Times preparation and an epoch of each family of Γ, including exemplars and validation.

    Returns:
        The cost per crop, or per frame for a detector.
    """
    return tuple(
        _family_cost(model, family, side, device, timer)
        for family in sorted({family_of(config) for config in configs})
    )


def _family_cost(model: EdgeModel, family: Family, side: int, device: str, timer: Timer) -> FamilyCost:
    count = _TRAINING_CROPS if model.detector is None else _TRAINING_FRAMES
    trained = round(count * (1 + REPLAY_RATIO))
    validation = round(count * VALIDATION_FRACTION / (1 - VALIDATION_FRACTION))
    config = RetrainConfig(_EPOCHS, family.batch_size, family.head_width, family.trainable_blocks, 1.0)

    def made() -> Retraining:
        return Retraining(
            model,
            config,
            RetrainingData(
                _labelled(trained, side, model),
                _labelled(validation, side, model),
                model.classes,
                memory=ExemplarMemory(),
                seed=0,
            ),
            Compute(device=device),
        )

    # A training is prepared once: one for the untimed call, and one for the timed.
    unprepared = [made(), made()]
    training = unprepared[0]
    prepare_s = timer.seconds(lambda: unprepared.pop().prepare_training(), 1)
    epoch_s = timer.seconds(training.run_epoch, _EPOCHS)
    steps = steps_in_epoch(trained, family.batch_size)
    # A job can be interrupted between steps, which were not timed one by one.
    timer.longest_s = max(timer.longest_s, epoch_s / steps)
    return FamilyCost(family, prepare_s / count, epoch_s / count)


def label_gpu_s(golden: GoldenModel, picture: NDArray[np.uint8], timer: Timer) -> float:
    """Times the golden model on a few pictures with objects; returns seconds per object."""
    height, width = picture.shape[:2]
    box = np.array([[0.2 * width, 0.2 * height, 0.4 * width, 0.5 * height]], np.float32)
    asked = [Question(np.repeat(box, _LABELLED_OBJECTS, axis=0), picture)] * _LABELLED_PICTURES
    took_s = timer.batch_s(lambda: golden.label_boxes(asked))
    return took_s / (_LABELLED_PICTURES * _LABELLED_OBJECTS)


def frame_label_gpu_s(golden: GoldenModel, picture: NDArray[np.uint8], timer: Timer) -> float:
    """Times the golden model on a whole picture; returns seconds."""
    return timer.batch_s(lambda: golden.find_objects(picture))


def _labelled(count: int, side: int, model: EdgeModel) -> Examples:
    if model.detector is not None:
        return random_frames(count, side, tuple(dict.fromkeys(model.classes)))
    order = np.arange(count)
    return LabelledCrops(random_images(count, side), order % len(model.classes), order, order)


if __name__ == "__main__":
    main()
