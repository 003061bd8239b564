"""`ekya run --resume`: restores the state of an interrupted run at the start of its last window.

The state is that of the snapshot. The journal is cut at that window, so that it reads as if there had been no
interruption, and the report of the part before is removed. Answered frames stay answered, and the newest
weights serve. State that was only in memory is lost: retrainings in progress, and the frames kept for
labelling. What an operator asked for and was not carried out yet is asked for again.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from ekya.config.fleet_file import FleetConfig
from ekya.control.loop import closes_run
from ekya.control.loop_state import LoopState
from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.commands import StepRecord
from ekya.core.effects import shown_enough_us
from ekya.core.errors import UserError
from ekya.core.state import FleetState
from ekya.core.stream_faults import Status
from ekya.core.units import BASE_VERSION, ModelVersion, StreamId
from ekya.results.storage.journal import read_header, read_journal, read_steps, require_own_version
from ekya.results.storage.run_folder import RunFolder, remove_later_weights
from ekya.results.storage.run_state import ModelRow, StateStore
from ekya.results.storage.segmented_journal import StateSnapshot, cut_to, list_segments, read_snapshot
from ekya.system.files import user_errors

_LOG = logging.getLogger(__name__)

_REASON = "the run was interrupted"


@dataclass(frozen=True, slots=True)
class Resumed:
    """State from which a run resumes.

    Attributes:
        state: of the loop.
        scheduler: name of the one with which the journal began.
        options: constants of the loop as the run began.
        events: effects of the interruption, to be sent to the loop.
        reached_us: last run time before the interruption that the journal knows.
        again: streams that were removed and have been added again since the state; it knows the earlier ones.
        snapshot: of the state, at which the journal is still to be cut; see ``truncate_journal``.
    """

    state: LoopState
    scheduler: str
    options: LoopOptions
    events: tuple[ev.Event, ...]
    reached_us: int
    again: frozenset[StreamId] = frozenset()
    snapshot: StateSnapshot | None = None

    @property
    def known(self) -> frozenset[StreamId]:
        """Streams that the state knows; others are to be added."""
        return frozenset(one.stream for one in self.state.fleet.streams) - self.again

    @property
    def paused(self) -> tuple[StreamId, ...]:
        """Streams that are paused."""
        paused = {one.stream for one in self.state.fleet.streams if one.faults.paused} - self.again
        for event in self.events:
            if isinstance(event, rq.StreamPaused):
                (paused.add if event.paused else paused.discard)(event.stream)
            elif isinstance(event, rq.StreamRemoved):
                paused.discard(event.stream)
        return tuple(sorted(paused))

    @property
    def from_us(self) -> int:
        """Run time at which the window opens in which it continues."""
        return self.state.fleet.window_end_us

    def truncate_journal(self, folder: RunFolder) -> None:
        """Cuts the journal where the state is, immediately before the loop continues.

        It holds the requests of the interrupted window, which a start that fails must not lose.

        Raises:
            UserError: no permission and the like.
        """
        if self.snapshot is not None:
            cut_to(folder, self.snapshot)


_Kept = rq.StreamPaused | rq.ModelFrozen
"""Requests that hold until they are taken back, so those of the interrupted window hold as well.

The others are in the fleet's file, or are carried out once (``_Open``).
"""

_Open = rq.LabelsRequested | rq.RollBackRequested
"""Requests that are carried out once; those that were not yet are made again."""


def require_resumable(folder: RunFolder) -> StateSnapshot | None:
    """Returns the snapshot from which a run goes on; None of a complete run that lacks its report alone.

    Raises:
        UserError: the run is complete, was interrupted before its second window, or is of another version.
    """
    require_own_version(folder.journal)
    snapshot = read_snapshot(folder)
    if snapshot is None:
        steps = read_journal(folder.journal)[2]
    else:
        steps = read_steps(folder.journal_segment(snapshot.segment), snapshot.at_byte)
    if not is_complete(steps):
        if snapshot is None:
            raise UserError(f"{folder.path}: the run ended before its second window; start it anew.")
        return snapshot
    if folder.summary.is_file() and folder.report.is_file():
        raise _complete(folder)
    return None


def resume_run(folder: RunFolder, streams: Collection[StreamId]) -> Resumed:
    """Returns the state at the start of the last window, and removes a report; as ``require_resumable``.

    The journal is cut there by ``Resumed.truncate_journal``.

    Args:
        folder: of the run.
        streams: of its fleet file; others are removed from the run.

    Raises:
        UserError: as ``require_resumable``, or the run is complete.
    """
    snapshot = require_resumable(folder)
    if snapshot is None:
        raise _complete(folder)
    return _from_snapshot(folder, snapshot, streams)


def resume_service(folder: RunFolder, streams: Collection[StreamId]) -> Resumed | None:
    """Returns the state in which a service goes on, as ``resume_run``; None where its folder has none.

    Then it begins its journal anew. That is so when it was killed in its first window, and when its snapshot
    is of another version of Ekya: then what is known of past windows is lost, and its models are not.

    Raises:
        UserError: its database cannot be read, or is of a newer version. Nothing is removed then.
    """
    if folder.state.is_file():
        StateStore(folder.state).close()
    try:
        snapshot = read_snapshot(folder)
        if snapshot is not None:
            return _from_snapshot(folder, snapshot, streams)
    except UserError as error:
        _LOG.warning("%s; the loop starts anew, and the models, history and token in the folder stay", error)
    with user_errors(folder.path):
        folder.snapshot.unlink(missing_ok=True)
        for number in list_segments(folder):
            folder.journal_segment(number).unlink()
    return None


def _from_snapshot(folder: RunFolder, snapshot: StateSnapshot, streams: Collection[StreamId]) -> Resumed:
    journal = folder.journal_segment(snapshot.segment)
    scheduler, options = read_header(journal)
    steps = read_steps(journal, snapshot.at_byte)
    if is_complete(steps):
        raise _complete(folder)
    _remove_report(folder)
    fleet = snapshot.state.fleet
    reached_us = steps[-1].now_us if steps else fleet.window_end_us
    happened = [event for step in steps for event in step.events]
    requests = (*_requests(happened, streams), *_open_requests(fleet, happened, streams, reached_us))
    # They come before the window opens.
    early = (replace(event, t_us=fleet.window_end_us - 1) for event in requests)
    events = (*_interruption(fleet, streams), *early)
    again = _added_again(fleet, happened) & frozenset(streams)
    state = replace(snapshot.state, fleet=_as_in_file(fleet))
    return Resumed(state, scheduler, options, events, reached_us, again, snapshot)


def _as_in_file(fleet: FleetState) -> FleetState:
    """Returns the state without changes that the fleet's file has, from which the options are made again.

    Nor has it labels that were asked for: those that were not made are asked for again.
    """
    streams = tuple(
        replace(stream, terms=None, areas=None, gpu=None, requested=False) for stream in fleet.streams
    )
    return replace(
        fleet,
        streams=streams,
        min_accuracy=None,
        scheduler=None,
        capacity=None,
        lost_gpus=(),
        label_budget=None,
    )


def _requests(happened: Sequence[ev.Event], streams: Collection[StreamId]) -> list[_Kept]:
    """Returns the requests that hold of an interrupted window, without those to a stream removed since."""
    kept: list[_Kept] = []
    for event in happened:
        if isinstance(event, rq.StreamRemoved):
            kept = [one for one in kept if one.stream != event.stream]
        elif isinstance(event, _Kept) and event.stream in streams:
            kept.append(event)
    return kept


def _open_requests(
    fleet: FleetState, happened: Sequence[ev.Event], streams: Collection[StreamId], reached_us: int
) -> list[_Open]:
    """Returns the requests that were not carried out by the interruption; of several of a kind the last.

    Labels are of frames from ``reached_us`` on: those that were kept before went with the process.
    """
    labels = {one.stream: one.drifted_us or 0 for one in fleet.streams if one.requested}
    back: dict[StreamId, rq.RollBackRequested] = {}
    for event in happened:
        match event:
            case rq.StreamRemoved():
                labels.pop(event.stream, None)
                back.pop(event.stream, None)
            case rq.LabelsRequested():
                labels[event.stream] = event.since_us
            case ev.LabelsReady(since_us=int(since_us)) if shown_enough_us(event) is None:
                if since_us >= labels.get(event.stream, since_us):
                    labels.pop(event.stream, None)
            case rq.RollBackRequested():
                back[event.stream] = event
            case ev.RolledBack() if event.stream in back and event.of == back[event.stream].version:
                del back[event.stream]
    again: list[_Open] = [rq.LabelsRequested(reached_us, stream, reached_us) for stream in sorted(labels)]
    again += back.values()
    return [one for one in again if one.stream in streams]


def _added_again(fleet: FleetState, happened: Sequence[ev.Event]) -> frozenset[StreamId]:
    """Returns the streams of a state that are not those of these names any more.

    They were removed in the interrupted window, or just before it, or a resumed run has added them again.
    """
    changed = {event.stream for event in happened if isinstance(event, rq.StreamRemoved | ev.StreamAdded)}
    return frozenset(one.stream for one in fleet.streams if one.removed or one.stream in changed)


def _complete(folder: RunFolder) -> UserError:
    return UserError(f"{folder.path}: this run is complete; there is nothing to continue.")


def _remove_report(folder: RunFolder) -> None:
    """Removes what an earlier end wrote; versions of weights are numbered anew from the snapshot on."""
    with user_errors(folder.path):
        for path in (folder.summary, folder.report, *folder.path.glob("student/*.parquet")):
            path.unlink(missing_ok=True)


def is_complete(steps: Sequence[StepRecord]) -> bool:
    """Returns whether the last window of a run has closed."""
    return bool(steps) and closes_run(Batch(steps[-1].now_us, steps[-1].events))


def _interruption(fleet: FleetState, streams: Collection[StreamId]) -> Iterator[ev.Event]:
    """Returns the interruption as events: streams lost and back, retrainings failed, no guests.

    A stream that is not in the fleet any more is removed; one that was set aside is tried again.
    """
    from_us = fleet.window_end_us
    if fleet.lent_milli:
        yield ev.CapacityLent(from_us - 1, 0)
    for stream in fleet.streams:
        if stream.job is not None:
            yield ev.RetrainFailed(from_us - 1, stream.stream, stream.job.job, _REASON)
        if stream.stream not in streams:
            yield rq.StreamRemoved(from_us - 1, stream.stream)
            continue
        if stream.status is Status.SET_ASIDE:
            yield ev.StreamReadmitted(from_us - 1, stream.stream)
        if stream.status is not Status.ENDED:
            yield ev.StreamLost(from_us - 1, stream.stream, _REASON)
            yield ev.StreamBack(from_us, stream.stream)
            yield ev.WorkerBack(from_us, stream.stream, ev.Role.INFERENCE)


def kept_models(folder: RunFolder, store: StateStore, stream: StreamId) -> list[ModelRow]:
    """Returns the models that have served a stream and are still in the folder, by version."""
    return [row for row in store.read_models(stream) if (folder.path / row.path).is_file()]


def kept_weights(
    folder: RunFolder, store: StateStore, stream: StreamId, version: ModelVersion
) -> bytes | None:
    """Returns the weights of a version that has served a stream, of its row's file; None if it is gone."""
    rows = (row for row in kept_models(folder, store, stream) if row.version == version)
    row = next(rows, None)
    return None if row is None else (folder.path / row.path).read_bytes()


def newest_weights(folder: RunFolder, fleet: FleetConfig) -> dict[StreamId, tuple[bytes, ModelVersion]]:
    """Returns bytes and version of the weights that served last, by stream. Later ones are removed.

    A stream without any is left out; it begins with the base model.
    """
    newest = {}
    with StateStore(folder.state) as store:
        for stream in fleet.streams:
            rows = kept_models(folder, store, stream.id)
            if not rows:
                if any(row.version > BASE_VERSION for row in store.read_models(stream.id)):
                    _LOG.warning("%s: its weights are gone; it begins with the base model", stream.id)
                continue
            path = folder.path / rows[-1].path
            newest[stream.id] = (path.read_bytes(), rows[-1].version)
            remove_later_weights(folder.models(stream.id), rows[-1].version)
    return newest
