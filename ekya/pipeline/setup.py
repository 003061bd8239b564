"""Builds from a fleet file the inputs that all worlds share."""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_sections import KeptFrames, StreamConfig
from ekya.control.options import CHECKPOINT_DELAY_US, LoopOptions, StreamTerms
from ekya.core.errors import UserError
from ekya.core.events import StreamBack, StreamLost
from ekya.core.host import TYPICAL_OBJECTS
from ekya.core.profile import FamilyCost
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import StreamId, seconds_to_us, us_to_seconds
from ekya.core.view import InferenceOption
from ekya.models.edge.architecture_table import Task
from ekya.models.golden.golden_from_detections import LabelFileProposer
from ekya.models.golden.golden_model import PROPOSAL_SCORE, label_file_of, open_detector_of
from ekya.models.golden.label_file import read_labels
from ekya.models.golden.spec import FILE, detector_of
from ekya.models.proposer import DetectedBoxes, GivenBoxes, NoProposals, Proposer
from ekya.pipeline.collector import WindowCollector
from ekya.pipeline.device_scopes import UNCHARGED, DeviceScopes
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.settings import PreparationSettings
from ekya.planning.adaptation.drift import DriftMonitor
from ekya.planning.placement.homes import PREPARATION_GPU, JobPlaces, assign_home_gpus
from ekya.planning.profiling.inference_profile import NEVER_FOLLOWED, inference_options
from ekya.results.metrics.script_events import Cue, Happening
from ekya.streams.ingest.playing import LOST_BY_SCRIPT, Joins, Lost

_LOG = logging.getLogger(__name__)


def loop_options(
    fleet: FleetConfig,
    family_costs: tuple[FamilyCost, ...],
    seed: int,
    share_step_milli: int,
    capacity_milli: int,
) -> LoopOptions:
    """Returns the loop's constants for a fleet."""
    window_us = seconds_to_us(fleet.window_s)
    return LoopOptions(
        window_us=window_us,
        windows=fleet.windows,
        capacity_milli=min(fleet.capacity_milli, capacity_milli),
        quantum_milli=fleet.quantum_milli,
        steal_milli=fleet.steal_milli,
        min_accuracy=fleet.min_accuracy,
        preparation_share_milli=fleet.preparation.share_milli,
        preparation_us=int(window_us * fleet.preparation.fraction),
        checkpoint_delay_us=CHECKPOINT_DELAY_US if fleet.checkpoints else None,
        retrain_configs=fleet.retrain_configs(),
        inference_configs=fleet.inference_configs(),
        family_costs=family_costs,
        share_step_milli=share_step_milli,
        packing=fleet.placement,
        seed=seed,
        terms=tuple(terms for stream in fleet.streams if (terms := _terms(stream)) != StreamTerms(stream.id)),
        profiler=fleet.preparation.profiler,
        serve_margin=fleet.shadow_gate.margin,
        roll_back_margin=fleet.shadow_gate.roll_back,
        prepared_streams=fleet.preparation.streams,
        reacts_to_drift=fleet.drift.reacts,
        pools_labels=fleet.drift.pools,
        last_join_us=max(stream.play.joins_us for stream in fleet.streams),
    )


def job_places(fleet: FleetConfig, capacity_milli: int) -> JobPlaces:
    """Returns the GPU of each job of a live run; ``capacity_milli`` is the run's capacity over all GPUs."""
    homes = assign_home_gpus(len(fleet.streams), capacity_milli)
    streams = {stream.id: gpu for stream, gpu in zip(fleet.streams, homes, strict=True)}
    return JobPlaces(streams, PREPARATION_GPU)


def _terms(stream: StreamConfig) -> StreamTerms:
    limit_us = None if stream.max_age_s is None else seconds_to_us(stream.max_age_s)
    return StreamTerms(stream.id, stream.weight, limit_us)


def crop_side(fleet: FleetConfig) -> int:
    """Returns the side in pixels of stored crops or frames: enough for training and for every λ."""
    return max(fleet.edge.resolution, *fleet.inference.resolutions)


def typical_images(fleet: FleetConfig) -> float:
    """Returns the number of images that an edge model analyses for a typical frame."""
    return 1.0 if fleet.edge.task is Task.DETECT else TYPICAL_OBJECTS


def proposer_for(fleet: FleetConfig, stream: StreamConfig, scopes: DeviceScopes = UNCHARGED) -> Proposer:
    """Returns the proposer of a stream: the source's boxes, a label file, or the golden detector.

    Models that detect need no proposals. ``scopes`` are of its work; a detector is opened on their device.
    """
    if fleet.edge.task is Task.DETECT:
        return NoProposals()
    if stream.source.gives_truth:
        return GivenBoxes()
    if fleet.golden.model == FILE:
        return LabelFileProposer(read_labels(label_file_of(fleet.golden), [stream.id]), stream.id)
    if detector_of(fleet.golden) is None:
        raise UserError(
            f"key 'golden.model': {fleet.golden.model} only names objects, and {stream.id} is a video "
            "in which they must be found; use a detector, such as fastestdet."
        )
    return DetectedBoxes(open_detector_of(fleet.golden, PROPOSAL_SCORE, scopes.device), scopes.scope)


def drift_monitor(fleet: FleetConfig) -> DriftMonitor | None:
    """Returns a new monitor of a stream; None where the fleet does not notice drift."""
    drift = fleet.drift
    return DriftMonitor(fleet_classes(fleet), drift.false_alarms_per_hour) if drift.notice else None


def misfortunes(stream: StreamConfig) -> tuple[StreamLost | StreamBack, ...]:
    """Returns the camera outages of a stream's script as events, in order."""
    return tuple(
        event
        for from_us, until_us in stream.play.outages_us
        for event in (StreamLost(from_us, stream.id, LOST_BY_SCRIPT), StreamBack(until_us, stream.id))
    )


def script_cues(fleet: FleetConfig) -> tuple[Cue, ...]:
    """Returns the events of a fleet's scripts, in run time."""
    return tuple(cue for stream in fleet.streams for cue in _cues(stream))


def _cues(stream: StreamConfig) -> Iterator[Cue]:
    play = stream.play
    for event in play.script:
        at_us = play.to_run_us(seconds_to_us(event.at_s))
        if isinstance(event, Joins):
            yield Cue(at_us, stream.id, Happening.JOINS)
            continue
        until_us = play.to_run_us(seconds_to_us(event.at_s + event.for_s))
        yield Cue(at_us, stream.id, Happening(event.event), until_us)
        if isinstance(event, Lost):
            yield Cue(until_us, stream.id, Happening.BACK)


@dataclass(frozen=True, slots=True)
class StreamSetup:
    """Constants of a stream."""

    config: StreamConfig
    settings: PreparationSettings
    window_us: int

    def collector(self) -> WindowCollector:
        """Returns a collector that keeps frames for the golden model."""
        return WindowCollector(self.settings, self.window_us, self.config.id)


def stream_setup(fleet: FleetConfig, place: int, fps: float, seed: int) -> StreamSetup:
    """Returns a stream's constants; ``place`` is its position among the fleet's streams."""
    drawn = np.random.SeedSequence((seed, place)).generate_state(1)[0]
    return StreamSetup(
        config=fleet.streams[place],
        settings=PreparationSettings(
            classes=fleet_classes(fleet),
            side=crop_side(fleet),
            fps=fps,
            labels_per_window=fleet.golden.labels_per_window,
            label_gpu_s=fleet.golden.gpu_s_per_window,
            seed=int(drawn),
            profiler=fleet.preparation.profiler,
            roll_back_margin=fleet.shadow_gate.roll_back,
            only_analysed=fleet.preparation.frames is KeptFrames.ANALYSED,
            task=fleet.edge.task,
            frames_per_window=fleet.golden.frames_per_window,
            keeps_newest=fleet.drift.reacts,
        ),
        window_us=seconds_to_us(fleet.window_s),
    )


def first_inference_options(
    fleet: FleetConfig,
    stream: StreamId,
    fps: float,
    frame_gpu_s: Mapping[int, float],
    speed: SpeedCurve = LINEAR,
    following_gpu_s: Mapping[int, float] = NEVER_FOLLOWED,
) -> tuple[InferenceOption, ...]:
    """Returns Λ before anything is profiled: costs are measured, the accuracy of skipping frames is a guess.

    Raises:
        UserError: no λ keeps the stream's ``max_age_s`` at any share.
    """
    configs = fleet.inference_configs()
    options = inference_options(configs, (), frame_gpu_s, fps, speed, following_gpu_s)
    limit_s = fleet.stream(stream).max_age_s
    youngest_s = us_to_seconds(min(option.age_us for option in options))
    if limit_s is not None and youngest_s > limit_s:
        raise UserError(
            f"key 'streams.{stream}.max_age_s': {limit_s:g} is too little, since at {fps:g} frames a second "
            f"results of the fleet's inference.every get {youngest_s:.3g} s old; use at least "
            f"{math.ceil(youngest_s * 1000) / 1000:g}, or a smaller inference.every."
        )
    return options
