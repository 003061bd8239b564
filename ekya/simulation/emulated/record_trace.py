"""`ekya profile`: records a fleet's trace, stream by stream."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

import torch

from ekya.config.fleet_file import FleetConfig
from ekya.core.errors import UserError
from ekya.core.profile import family_of
from ekya.core.records import NO_LABELS, LabelledBoxes
from ekya.core.trace import StreamTrace, Trace
from ekya.core.units import StreamId, seconds_to_us
from ekya.models.golden.golden_model import GoldenModel, open_golden
from ekya.pipeline.base_model import base_model
from ekya.pipeline.costs import CostCard, load_card
from ekya.pipeline.discover_classes import fleet_classes, with_classes
from ekya.pipeline.first_look import warn_before_run
from ekya.pipeline.reference import Referee
from ekya.pipeline.setup import crop_side, proposer_for, stream_setup
from ekya.planning.profiling.history import ProfileHistory
from ekya.planning.profiling.pruning import select_families
from ekya.simulation.emulated.courses import Common
from ekya.simulation.emulated.model_inputs import model_input_of
from ekya.simulation.emulated.stored_frames import SeenWindow, iterate_windows
from ekya.simulation.emulated.trace_recorder import StreamRecorder
from ekya.streams.ingest.process import SourceProcess

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Extent:
    """Extent of a recording.

    Attributes:
        streams: ids; empty for all.
        families: number of families of γ, the cheapest first; None for all.
        every_start: train from every model that may serve, not only from the newest of each family.
        also_labelled: further objects per stream that do not count, such as those that runs labelled.
    """

    streams: tuple[StreamId, ...] = ()
    families: int | None = None
    every_start: bool = False
    also_labelled: Mapping[StreamId, LabelledBoxes] = field(default_factory=dict)


class TraceProgress(Protocol):
    """Receives the progress of a recording."""

    def expect(self, stream: StreamId, trainings: int) -> None:
        """Called when a stream begins; ``trainings`` is an upper bound of their number."""

    def trained(self, what: str) -> None:
        """Called after each training."""


def record_fleet(
    fleet: FleetConfig,
    seed: int,
    extent: Extent,
    before: Trace | None,
    keep: Callable[[Trace], None],
    progress: TraceProgress,
    card: CostCard | None = None,
) -> Trace:
    """Records every stream of a fleet, from first to last window.

    Args:
        fleet: as for a run.
        seed: seed of all random draws, as of a run.
        extent: what is recorded.
        before: a trace with some of the fleet's streams, to be completed.
        keep: receives the trace after each stream.
        progress: receives the progress.
        card: costs of the work; None takes the shipped cost card.

    Raises:
        UserError: a stream is unknown or shorter than two windows, ``before`` is of another fleet, or a
            λ cannot be recorded.
    """
    _require_recordable(fleet)
    torch.set_num_threads(1)
    # As `use_deterministic_algorithms` does it, which also loads torch's compiler.
    torch.set_deterministic_debug_mode("error")
    fleet = with_classes(fleet)
    warn_before_run(fleet)
    card = (card or load_card()).of(fleet.edge.model)
    trace = _empty(fleet, seed, extent, card)
    if before is not None:
        _require_same(before, trace)
        trace = before
    golden = open_golden(fleet.golden, fleet_classes(fleet), fleet.edge.task)
    common = Common(
        retrain_configs=trace.retrain_configs,
        inference_configs=trace.inference_configs,
        base=base_model(fleet, seed),
        golden=golden,
        card=card,
        window_us=trace.window_us,
        every_start=extent.every_start,
        on_training=progress.trained,
    )
    known = {recorded.stream for recorded in trace.streams}
    for place, stream in enumerate(fleet.streams):
        if stream.id in known or (extent.streams and stream.id not in extent.streams):
            continue
        _LOG.info("%s: watching all of it", stream.id)
        also_labelled = extent.also_labelled.get(stream.id, NO_LABELS)
        recorder = replace(_recorder(fleet, place, seed, golden, common), also_labelled=also_labelled)
        progress.expect(stream.id, common.trainings(len(recorder.windows)))
        trace = with_stream(trace, recorder.record())
        keep(trace)
    return trace


def with_stream(trace: Trace, stream: StreamTrace) -> Trace:
    """Returns the trace with one more stream."""
    return replace(trace, streams=tuple(sorted([*trace.streams, stream], key=lambda one: one.stream)))


def with_objects(windows: tuple[SeenWindow, ...]) -> tuple[SeenWindow, ...]:
    """Drops a last, partial window without objects, which no run counts either."""
    last = windows[-1:]
    shows_nothing = last and last[0].part < 1.0 and not len(last[0].frames.reference.classes)
    return windows[:-1] if shows_nothing else windows


def _recorder(
    fleet: FleetConfig, place: int, seed: int, golden: GoldenModel, common: Common
) -> StreamRecorder:
    """Reads one stream to its end and returns a recorder of its windows."""
    stream = fleet.streams[place]
    with ExitStack() as stack:
        source = stack.enter_context(
            SourceProcess(stream.first_pass, fleet_classes(fleet), areas=stream.areas)
        )
        setup = stream_setup(fleet, place, source.wait_open(), seed)
        proposer = proposer_for(fleet, stream)
        frames = source.frames()
        first = next(frames, None)
        seen: Iterator[SeenWindow] = iter(())
        if first is not None:
            seen = iterate_windows(
                chain([first], frames),
                proposer,
                setup.collector(),
                None if stream.source.gives_truth else Referee(golden, stream.id),
                model_input_of(setup.settings, common.inference_configs),
                setup.window_us,
                fleet.windows,
                fleet.inference.golden_every,
            )
        windows = with_objects(tuple(seen))
    if first is None or len(windows) < 2:
        raise UserError(
            f"stream {stream.id}: it shows {len(windows)} windows of {fleet.window_s:g} s, and a trace "
            "needs two; use shorter windows (--window) or leave it out (--streams)."
        )
    operations = proposer.operations(first[0].image.shape)
    return StreamRecorder(stream.id, setup.settings, windows, operations, common)


def _require_recordable(fleet: FleetConfig) -> None:
    """Refuses λ of which a recording does not know what they would answer."""
    known = [stream.id for stream in fleet.streams if stream.source.gives_truth]
    if fleet.inference.golden_every and known:
        raise UserError(
            "key 'inference.golden_every': a trace has λ of the golden detector where that is the reference, "
            f"and the objects of {known[0]} are known; remove it."
        )


def _empty(fleet: FleetConfig, seed: int, extent: Extent, card: CostCard) -> Trace:
    unknown = sorted(set(extent.streams) - {stream.id for stream in fleet.streams})
    if unknown:
        names = ", ".join(stream.id for stream in fleet.streams)
        raise UserError(f"--streams: the fleet has no '{unknown[0]}'; choose from {names}.")
    families = select_families(fleet.retrain_configs(), ProfileHistory(), 0)[: extent.families]
    more = sum(len(labelled.frame) for labelled in extent.also_labelled.values())
    starts = "every start" if extent.every_start else "the youngest starts"
    windows = "to the end" if fleet.windows is None else f"{fleet.windows} windows"
    return Trace(
        window_us=seconds_to_us(fleet.window_s),
        gpu=card.device,
        classes=fleet_classes(fleet),
        retrain_configs=tuple(c for c in fleet.retrain_configs() if family_of(c) in families),
        inference_configs=fleet.inference_configs(),
        streams=(),
        family_costs=card.family_costs(
            (c for c in fleet.retrain_configs() if family_of(c) in families), crop_side(fleet)
        ),
        recorded=f"seed {seed}, {windows}, {starts}" + (f", {more} more labels left out" if more else ""),
    )


def _require_same(before: Trace, wanted: Trace) -> None:
    if before.recorded != wanted.recorded:
        raise UserError(
            f"--resume: the trace that is there was recorded with {before.recorded or 'unknown settings'}, "
            f"and this would be {wanted.recorded}; name another file with --out."
        )
    if replace(before, streams=()) != wanted:
        raise UserError(
            "--resume: the trace that is there is of another fleet, another version or choice of γ; name "
            "another file with --out."
        )
