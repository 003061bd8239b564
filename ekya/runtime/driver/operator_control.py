"""Control of a live run: what an operator asks becomes an event of the loop."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import PurePath

import ray
from ray.exceptions import GetTimeoutError, RayError

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import write_fleet
from ekya.config.fleet_sections import StreamConfig
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.errors import NotThereError, UserError
from ekya.core.units import BASE_VERSION, US_PER_S, ModelVersion, StreamId, seconds_to_us, us_to_seconds
from ekya.pipeline.host_probe import dearest
from ekya.pipeline.run_writer import ModelRecord
from ekya.results.storage.model_files import remove_all
from ekya.results.storage.run_folder import RunFolder, check_stream_name
from ekya.results.storage.run_state import ModelRow, StateStore
from ekya.results.storage.validation_files import forget_validations
from ekya.runtime.actors.actor_messages import RunClock, in_words, unwrapping_user_error
from ekya.runtime.driver.executor import RayExecutor
from ekya.runtime.driver.fleet_actors import FleetActors
from ekya.runtime.driver.fleet_changes import CHANGED_SECTIONS, RunLimits, fleet_change, with_class
from ekya.runtime.driver.loop_calls import LoopCalls
from ekya.runtime.driver.resuming import kept_models
from ekya.streams.ingest.playing import Joins

_ADDED_S = 60.0
"""Longest wait for a new stream: a process may have to be started for it."""

_PICTURE_S = 3.0

LABELLED_US = 10 * US_PER_S
"""Newest frames of a stream that are labelled when an operator asks for it."""


class OperatorControl:
    """Changes a live run, and looks into it. Any thread may call.

    A change is an event in the journal, and is in the run's ``fleet.yaml`` where that has a key for it. So a
    run that is resumed is as it was changed.

    Args:
        executor, actors, clock: of the run.
        folder: of the run.
        store: of the run; used by the thread of the loop.
        limits: of the run.
    """

    def __init__(
        self,
        executor: RayExecutor,
        actors: FleetActors,
        clock: RunClock,
        folder: RunFolder,
        store: StateStore,
        limits: RunLimits,
    ) -> None:
        self._executor, self._actors, self._clock = executor, actors, clock
        self._loop = LoopCalls(executor)
        self._folder, self._store, self._limits = folder, store, limits
        self._fleet = actors.fleet
        # Cameras that are being added; of the loop's thread.
        self._adding: dict[StreamId, StreamConfig] = {}

    @property
    def fleet(self) -> FleetConfig:
        """The fleet as changed."""
        return self._fleet

    def add_camera(self, stream: StreamConfig) -> None:
        """Adds a camera; returns when its frames are analysed, or it is tried to be reached.

        A recording begins now, unless its script says when.

        Raises:
            UserError: its id is taken, it does not fit the fleet, or it cannot be opened.
        """
        stream = _joining_at(stream, self.now_us())
        serves: Future[None] = Future()

        def added(failed: str | None) -> None:
            del self._adding[stream.id]
            if failed is not None:
                serves.set_exception(UserError(f"{stream.id}: it cannot be added ({failed})"))
                return
            try:
                record = ModelRecord(self._folder, self._store, stream.id)
                record.add_model(BASE_VERSION, None, -1, None, None, self.now_us())
                self._keep(_with(self._fleet, [*self._fleet.streams, stream]))
            except UserError as error:  # a full disk
                self._executor.changes.remove_stream(stream.id)
                serves.set_exception(error)
                return
            self._emit_terms(stream)
            serves.set_result(None)

        def change() -> None:
            coming = list(self._adding.values())
            fleet = _with(self._fleet, [*self._fleet.streams, *coming, stream])
            if not self._executor.changes.may_be_added(stream.id):
                raise UserError(f"{stream.id}: the camera of this name is still ending; try again")
            # What an earlier camera of this name has learnt is not this one's.
            remove_all(self._folder, self._store, stream.id)
            self._folder.exemplars(stream.id).unlink(missing_ok=True)
            forget_validations(self._folder, stream.id)
            self._adding[stream.id] = stream
            self._executor.changes.add_stream(fleet, stream.id, dearest(self._limits.costs.streams), added)

        with self._loop.fail_at_end(serves):  # before the loop knows it, since the loop may end at once
            try:
                self._loop.make_call(change)
                serves.result(_ADDED_S)
            except TimeoutError:
                raise UserError(
                    f"{stream.id}: it is still being added after {_ADDED_S:g} s; see its state"
                ) from None

    def remove_camera(self, stream: StreamId) -> None:
        """Removes a camera; its records stay in the folder.

        Raises:
            NotThereError: there is no such camera.
            UserError: it is the last one.
        """

        def change() -> None:
            self.require_camera(stream)
            others = [one for one in self._fleet.streams if one.id != stream]
            if not others:
                raise UserError(f"{stream}: it is the last camera; pause it, or stop the service")
            self._keep(_with(self._fleet, others))
            self._executor.changes.remove_stream(stream)

        self._loop.make_call(change)

    def pause_camera(self, stream: StreamId, paused: bool) -> None:
        """Closes a camera and gives its share to the others, or opens it again.

        Raises:
            NotThereError: there is no such camera.
        """

        def change() -> None:
            self.require_camera(stream)
            self._executor.changes.pause_stream(stream, paused)

        self._loop.make_call(change)

    def freeze_model(self, stream: StreamId, frozen: bool) -> None:
        """Has a camera keep the model that serves, or lets it be retrained again.

        Raises:
            NotThereError: there is no such camera.
        """
        self.require_camera(stream)
        self._emit(lambda now_us: rq.ModelFrozen(now_us, stream, frozen))

    def change_terms(self, stream: StreamId, terms: Mapping[str, object]) -> None:
        """Sets terms of a camera: ``weight``, ``max_age_s``, ``mask``, ``zone``, each to a valid value.

        Raises:
            NotThereError: there is no such camera.
            UserError: no λ keeps them, or no object would count.
        """

        def change() -> None:
            self.require_camera(stream)
            before = self._fleet.stream(stream)
            changed = before.model_copy(update=dict(terms))
            try:
                changed.areas.require_some_part()
            except ValueError as error:
                raise UserError(f"{stream}: {error}") from None
            others = (one for one in self._fleet.streams if one.id != stream)
            fleet = _with(self._fleet, [*others, changed])
            costs = self._limits.costs.streams
            self._executor.changes.require_terms(fleet, stream, costs.get(stream, dearest(costs)))
            self._keep(fleet)
            if terms.keys() - {"mask", "zone"}:
                self._emit_terms(changed)
            if changed.areas != before.areas:
                self._executor.emit(rq.AreasChanged(self.now_us(), stream, changed.areas))

        self._loop.make_call(change)

    def change_fleet(self, values: Mapping[str, object]) -> bool:
        """Changes terms of the fleet; see ``fleet_change``. Returns whether the service starts again for it.

        Raises:
            UserError: a value is not possible.
        """

        def change() -> bool:
            changed = fleet_change(self._fleet, values, self._limits, self.now_us())
            self._keep(changed.fleet)
            # Of actors that are made again later.
            self._actors.change_fleet({name: getattr(changed.fleet, name) for name in CHANGED_SECTIONS})
            for event in changed.events:
                if isinstance(event, rq.CapacityChanged):
                    self._executor.resize_pool(event.capacity_milli)
                self._executor.emit(event)
            return any(isinstance(event, rq.RestartRequested) for event in changed.events)

        return self._loop.make_call(change)

    def add_class(self, name: str) -> None:
        """Adds a class to the fleet; the service starts again for it.

        What is remembered of earlier windows is forgotten: it shows objects of the class without their name.

        Raises:
            UserError: there is one of this name, or the golden model, a detector or a source has none.
        """
        larger = with_class(self._fleet, name)
        checked = self._actors.preparation.require_class.remote(larger, name)
        try:
            unwrapping_user_error(lambda: ray.get(checked, timeout=_ADDED_S))
        except RayError as error:
            raise UserError(
                f"{name}: the golden model does not answer ({in_words(error)}); try again"
            ) from None

        def change() -> None:
            self._keep(with_class(self._fleet, name))
            for stream in self._actors.streams:
                self._executor.forget_pictures(stream)
                self._folder.exemplars(stream).unlink(missing_ok=True)
            self._executor.emit(rq.RestartRequested(self.now_us(), f"the class {name} was added"))

        self._loop.make_call(change)

    def ask_labels(self, stream: StreamId) -> None:
        """Has a camera labelled now, on its newest frames, and retrained if that gains.

        Raises:
            NotThereError: there is no such camera.
        """
        self.require_camera(stream)
        self._emit(lambda now_us: rq.LabelsRequested(now_us, stream, max(now_us - LABELLED_US, 0)))

    def forget_pictures(self, stream: StreamId) -> None:
        """Deletes the exemplars and validations of a camera; of one that was removed as well.

        Raises:
            NotThereError: there is no such camera, and nothing is kept of one.
        """
        path = self._folder.exemplars(stream)

        def change() -> None:
            there = path.is_file()
            path.unlink(missing_ok=True)
            there = forget_validations(self._folder, stream) or there
            if stream in self._actors.streams:
                self._executor.forget_pictures(stream)
            elif not there:
                raise NotThereError(f"there is no camera {stream}, and no picture of one")

        check_stream_name(stream)
        self._loop.make_call(change)

    def roll_back(self, stream: StreamId, version: ModelVersion | None = None) -> None:
        """Has a camera serve earlier weights again.

        Args:
            stream: the camera.
            version: of the weights; None for those that served before the present ones.

        Raises:
            NotThereError: there is no such camera.
            UserError: there are no such weights.
        """
        self.require_camera(stream)
        rows = {row.version: row for row in self.models(stream)}
        # Newer weights may be on their way, or were lost there: they are not recorded.
        serving = rows[max(rows)] if rows else None
        # A roll-back gives earlier weights a new version; another one must not bring the later ones back.
        first = {one: _served_first_as(row) for one, row in rows.items()}
        earlier = [one for one in rows if first[one] < first[max(rows)]]
        wanted = max(earlier, default=None) if version is None else version
        if wanted is None or wanted not in rows or rows[wanted] == serving:
            others = earlier if version is None else [one for one in rows if rows[one] != serving]
            there = ", ".join(str(one) for one in others) or "none"
            which = "earlier versions" if version is None else "versions beside the serving one"
            raise UserError(f"{stream}: {which} that are kept: {there}")
        self._emit(lambda now_us: rq.RollBackRequested(now_us, stream, wanted))

    def models(self, stream: StreamId) -> tuple[ModelRow, ...]:
        """Returns the models that have served a camera and are kept, by version.

        Raises:
            NotThereError: there is no such camera.
        """
        self.require_camera(stream)
        return self._loop.make_call(lambda: tuple(kept_models(self._folder, self._store, stream)), reads=True)

    def picture(self, stream: StreamId) -> bytes | None:
        """Returns the newest frame of a camera with its boxes, as a JPEG; None where there is none.

        Raises:
            NotThereError: there is no such camera.
        """
        self.require_camera(stream)
        try:
            drawn: bytes | None = ray.get(
                self._actors.streams[stream].inference.draw_picture.remote(stream), timeout=_PICTURE_S
            )
        except (GetTimeoutError, RayError):
            return None
        return drawn

    def _emit_terms(self, stream: StreamConfig) -> None:
        limit_us = None if stream.max_age_s is None else seconds_to_us(stream.max_age_s)
        self._executor.emit(rq.TermsChanged(self.now_us(), stream.id, stream.weight, limit_us))

    def _keep(self, fleet: FleetConfig) -> None:
        """Writes the changed fleet into the folder."""
        write_fleet(self._folder.fleet, fleet)
        self._fleet = fleet

    def require_camera(self, stream: StreamId) -> None:
        """Raises NotThereError if there is no such camera."""
        if stream not in [one.id for one in self._fleet.streams]:
            raise NotThereError(f"there is no camera {stream}")

    def now_us(self) -> int:
        """Returns run time, 0 before the run begins."""
        return max(self._clock.now_us(), 0)

    def _emit(self, event: Callable[[int], ev.Event]) -> None:
        self._loop.make_call(lambda: self._executor.emit(event(self.now_us())))

    def close(self) -> None:
        """Ends what waits for the loop, which has ended."""
        self._loop.close()


def _served_first_as(row: ModelRow) -> int:
    """Returns the version under which weights served a camera first; it names their file."""
    return int(PurePath(row.path).stem)


def _joining_at(stream: StreamConfig, t_us: int) -> StreamConfig:
    """Returns a stream whose recording begins at a run time: at 0 it would be over, or half of it gone."""
    if stream.source.live or stream.play.script or t_us == 0:
        return stream
    joins = Joins(at_s=us_to_seconds(t_us) * stream.play.speed)
    play = stream.play.model_copy(update={"script": (joins,)})
    return stream.model_copy(update={"play": play})


def _with(fleet: FleetConfig, streams: Sequence[StreamConfig]) -> FleetConfig:
    """Returns the fleet with these streams.

    Raises:
        UserError: two have the same id.
    """
    ids = [stream.id for stream in streams]
    twice = next((one for one in ids if ids.count(one) > 1), None)
    if twice is not None:
        raise UserError(f"{twice}: there is a camera of this name; give it another id")
    return fleet.model_copy(update={"streams": tuple(sorted(streams, key=lambda stream: stream.id))})
