"""Scripted fleet: an executor as a pure model on virtual time.

Learning follows a law, labelling takes as long as it costs, and all random draws come from the seed; so the
loop runs whole windows in milliseconds, and reproducibly. The fleet also asserts that every command is valid
when it arrives, and that shares fit.
"""

from collections.abc import Callable
from itertools import count

from script import (
    BENT,
    LABEL_GPU_S,
    LAMBDA_GPU_S,
    PROFILED_EPOCHS,
    RESTART_US,
    SWAP_US,
    VALIDATION_CROPS,
    Camera,
    Job,
    S,
    accuracy_after,
    curve_of,
    gpu_s_of,
    lambdas_of,
)

from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.profile import FamilyCurve, family_of
from ekya.core.shares import retraining_holder
from ekya.core.units import JobId, ModelVersion
from ekya.core.weights import PooledLabels


class ScriptedFleet:
    """An executor. ``misfortunes`` are events at fixed times, independent of the loop.

    With ``tells_shares`` retrainings immediately report that they are at their share.
    """

    def __init__(
        self,
        options: LoopOptions,
        cameras: tuple[Camera, ...],
        seed: int,
        misfortunes: tuple[ev.Event, ...],
        tells_shares: bool = False,
    ) -> None:
        self._tells_shares = tells_shares
        self.cameras = {camera.stream: camera for camera in cameras}
        self.now_us = 0
        self.preparation: cmd.BeginPreparation | None = None
        self._options, self._seed = options, seed
        self.capacity_milli = options.capacity_milli
        self._jobs_seen: set[JobId] = set()
        self._serial = count(len(cameras))
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._outbox: list[ev.Event] = []
        for camera in cameras:
            added = ev.StreamAdded(camera.joins_us, camera.stream, lambdas_of(camera, measured=False))
            if camera.joins_us:
                self._at(camera.joins_us, lambda added=added: self._tell(added))
            else:
                self._tell(added)
        for window in range(1, options.windows or 1):
            self._at(window * options.window_us, self._drift)
        for event in misfortunes:
            self._at(event.t_us, lambda event=event: self.strike(event))

    # The executor's interface

    def wait(self, until_us: int) -> Batch:
        while not self._outbox:
            due = self._next_due(until_us)
            if due is None:
                self.now_us = max(self.now_us, until_us)
                break
            at_us, act = due
            self.now_us = max(self.now_us, at_us)
            act()
        events, self._outbox = tuple(self._outbox), []
        return Batch(self.now_us, events)

    def execute_commands(self, commands) -> None:
        for command in commands:
            before_milli = self.held_milli
            self._execute(command)
            # Of a capacity that was made smaller, more is in use until what shrinks has shrunk.
            assert self.held_milli <= max(self.capacity_milli, before_milli), (command, commands)
        assert self.held_milli <= self.capacity_milli, commands

    def charge(self, duration_us: int) -> None:
        self.now_us += duration_us

    @property
    def held_milli(self) -> int:
        """Returns the sum of all held shares."""
        jobs = sum(camera.job.share_milli for camera in self.cameras.values() if camera.job)
        inference = sum(camera.inference_milli for camera in self.cameras.values())
        return jobs + inference + (self.preparation.share_milli if self.preparation else 0)

    # Commands

    def _execute(self, command: cmd.Command) -> None:
        match command:
            case cmd.BeginPreparation():
                assert self.preparation is None
                self.preparation = command
                self._prepare(self._steps(command))
            case cmd.EndPreparation():
                ended = self.preparation
                assert ended is None or (ended.window, ended.round) == (command.window, command.round)
                self.preparation = None
            case cmd.SetInference():
                camera = self.cameras[command.stream]
                assert camera.alive
                assert 0 <= command.share_milli <= 1000
                camera.inference_milli = command.share_milli
            case cmd.StartRetraining():
                self._start(command)
            case cmd.ResizeRetraining():
                job = self._running(command)
                job.work_until(self.now_us)
                assert job.share_milli != command.share_milli, "a resize to the same share"
                job.share_milli = command.share_milli
                self._at_share(command)
            case cmd.ServeModel():
                self._serve(command)
            case cmd.KeepServing():
                job = self.cameras[command.stream].job or self.cameras[command.stream].ended
                assert job is not None
                assert job.started.job == command.job
            case cmd.RollBack():
                raise AssertionError("nothing was compared")
            case cmd.StopRetraining():
                self._running(command)
                self.cameras[command.stream].job = None
            case cmd.RestartWorker():
                assert command.role is ev.Role.RETRAINING or self.cameras[command.stream].down
                self._at(self.now_us + RESTART_US, lambda: self._back(command))
            case cmd.SetAside():
                camera = self.cameras[command.stream]
                camera.over, camera.job, camera.inference_milli = True, None, 0

    def _start(self, command: cmd.StartRetraining) -> None:
        camera = self.cameras[command.stream]
        assert camera.alive
        assert camera.job is None
        assert command.job not in self._jobs_seen
        if command.elsewhere is None:
            assert command.window == camera.labelled, "there are no labels of this window"
            prepared = self.preparation.streams if self.preparation is not None else ()
            assert all(asked.stream != command.stream for asked in prepared)
        self._jobs_seen.add(command.job)
        step, epoch = gpu_s_of(command.config, camera)
        camera.ended = None
        camera.job = Job(command, camera.accuracy, command.share_milli, self.now_us, step, epoch, step)
        if command.elsewhere is not None:
            assert command.share_milli == 0
            job = camera.job
            self._at(max(self.now_us, command.elsewhere.arrives_us), lambda: self._arrive(camera, job))
        else:
            self._at_share(command)

    def _at_share(self, command: cmd.StartRetraining | cmd.ResizeRetraining) -> None:
        if self._tells_shares:
            holder = retraining_holder(command.stream, command.job)
            self._tell(ev.ShareResized(self.now_us, holder, command.plan_epoch, command.share_milli, 0))

    def _arrive(self, camera: Camera, job: Job) -> None:
        """Delivers weights that were trained elsewhere, unless their retraining was stopped."""
        if camera.job is not job:
            return
        config, number = job.started.config, job.started.job
        seen = config.epochs * config.data_fraction * camera.crops
        job.accuracies.append(
            accuracy_after(family_of(config), job.from_accuracy, seen, (self._seed, number))
        )
        camera.ended, camera.job = job, None
        self._tell(ev.RetrainProgress(self.now_us, camera.stream, number, 1, job.accuracies[-1], 0.0))
        self._tell(ev.RetrainFinished(self.now_us, camera.stream, number, 0.0))

    def _serve(self, command: cmd.ServeModel) -> None:
        camera = self.cameras[command.stream]
        job = camera.job or camera.ended
        assert job is not None
        assert job.started.job == command.job
        accuracy = max(job.accuracies)
        last = max(epoch for epoch, of in enumerate(job.accuracies, start=1) if of == accuracy)
        assert command.epoch == last, "not its best epoch, of equals the last"
        if camera.job is not None:
            camera.job.work_until(self.now_us)
            camera.job.since_us += self._options.checkpoint_delay_us
        self._at(self.now_us + SWAP_US, lambda: self._swap(camera, command.job, accuracy))

    def _running(self, command) -> Job:
        job = self.cameras[command.stream].job
        assert job is not None
        assert job.started.job == command.job
        return job

    # Effects of commands

    def _drift(self) -> None:
        for camera in self.cameras.values():
            camera.accuracy = round(max(camera.accuracy - camera.drift, 0.1), 4)

    def _swap(self, camera: Camera, job: JobId, accuracy: float) -> None:
        camera.version += 1
        camera.accuracy = accuracy
        version = ModelVersion(camera.version)
        self._tell(ev.ModelSwapped(self.now_us, camera.stream, version, job, accuracy, 1500))

    def _back(self, command: cmd.RestartWorker) -> None:
        if command.role is ev.Role.INFERENCE:
            self.cameras[command.stream].down = False
        self._tell(ev.WorkerBack(self.now_us, command.stream, command.role))

    def strike(self, event: ev.Event) -> None:
        if isinstance(event, rq.FleetRequest):
            if isinstance(event, rq.CapacityChanged):
                self.capacity_milli = event.capacity_milli
            self._tell(event)
            return
        camera = self.cameras[event.stream]
        match event:
            case ev.WorkerDied(role=ev.Role.RETRAINING):
                camera.job = None
            case ev.RetrainFailed() if camera.job is not None and camera.job.started.job == event.job:
                camera.ended, camera.job = camera.job, None
            case ev.WorkerDied():
                camera.down, camera.inference_milli = True, 0
            case ev.StreamLost():
                camera.lost, camera.inference_milli = True, 0
            case ev.StreamBack():
                camera.lost = False
            case ev.StreamEnded():
                camera.over, camera.inference_milli = True, 0
        self._tell(event)

    def _next_due(self, until_us: int) -> tuple[int, Callable[[], None]] | None:
        due = list(self._later)
        for place, camera in enumerate(self.cameras.values()):
            if camera.job is not None and camera.job.due_us is not None:
                due.append((camera.job.due_us, place, lambda camera=camera: self._finish_step(camera)))
        first = min(due, key=lambda item: item[:2], default=None)
        if first is None or first[0] > until_us:
            return None
        if first in self._later:
            self._later.remove(first)
        return first[0], first[2]

    def _finish_step(self, camera: Camera) -> None:
        job = camera.job
        assert job is not None
        job.work_until(self.now_us)
        job.gpu_s = round(job.gpu_s + (job.epoch_gpu_s if job.prepared else job.step_gpu_s), 6)
        job.left_gpu_s = job.epoch_gpu_s
        if not job.prepared:
            job.prepared = True
            return
        config, number = job.started.config, job.started.job
        epoch = len(job.accuracies) + 1
        seen = epoch * config.data_fraction * camera.crops
        job.accuracies.append(
            accuracy_after(family_of(config), job.from_accuracy, seen, (self._seed, number, epoch))
        )
        accuracy = job.accuracies[-1]
        self._tell(ev.RetrainProgress(self.now_us, camera.stream, number, epoch, accuracy, job.gpu_s))
        if epoch == config.epochs:
            camera.ended, camera.job = job, None
            self._tell(ev.RetrainFinished(self.now_us, camera.stream, number, job.gpu_s))

    # Preparation

    def _steps(self, command: cmd.BeginPreparation) -> list[tuple[float, Callable[[], ev.Event]]]:
        window, steps = command.window, []
        for asked in command.streams:
            if not asked.labels:
                continue
            camera = self.cameras[asked.stream]
            steps.append((LABEL_GPU_S, lambda c=camera, of=asked: self._labels(c, window, of)))
        for asked in command.streams:
            camera = self.cameras[asked.stream]
            if asked.inference:
                steps.append((LAMBDA_GPU_S, lambda camera=camera: self._profiled(camera, window)))
        for rank in range(max((len(asked.families) for asked in command.streams), default=0)):
            for asked in command.streams:
                camera = self.cameras[asked.stream]
                if rank < len(asked.families):
                    salt = (self._seed, window, list(self.cameras).index(asked.stream))
                    curve = curve_of(asked.families[rank], camera, salt)
                    gpu_s = round(curve.prepare_gpu_s + PROFILED_EPOCHS * curve.epoch_gpu_s, 6)
                    steps.append(
                        (gpu_s, lambda c=camera, v=curve, g=gpu_s: self._micro_profiled(c, window, v, g))
                    )
        return steps

    def _pooled(self, asked: cmd.PrepareStream) -> PooledLabels | None:
        """Returns the labels of other streams' scenes."""
        others = tuple(one.stream for one in asked.scenes if one.stream != asked.stream)
        return PooledLabels(others, self.cameras[asked.stream].crops * len(others)) if others else None

    def _prepare(self, steps: list[tuple[float, Callable[[], ev.Event]]]) -> None:
        """Runs the first step, and the rest after it, unless the preparation has ended by then."""
        begun = self.preparation
        assert begun is not None
        if not steps:
            self._at(
                self.now_us, lambda: self._tell(ev.PreparationEnded(self.now_us, begun.window, begun.round))
            )
            return
        gpu_s, make = steps[0]

        def finish() -> None:
            if self.preparation is begun:
                self._tell(make())
                self._prepare(steps[1:])

        self._at(self.now_us + round(gpu_s / BENT.speed_at(begun.share_milli) * S), finish)

    def _labels(self, camera: Camera, window: int, asked: cmd.PrepareStream) -> ev.LabelsReady:
        camera.labelled = window
        return ev.LabelsReady(
            self.now_us,
            camera.stream,
            window,
            camera.crops,
            VALIDATION_CROPS,
            camera.accuracy,
            False,
            LABEL_GPU_S,
            since_us=asked.since_us,
            accuracy_on_all=camera.accuracy if asked.since_us is None else None,
            pooled=self._pooled(asked),
        )

    def _profiled(self, camera: Camera, window: int) -> ev.InferenceProfiled:
        options = lambdas_of(camera, measured=True)
        return ev.InferenceProfiled(self.now_us, camera.stream, window, options, LAMBDA_GPU_S)

    def _micro_profiled(
        self, camera: Camera, window: int, curve: FamilyCurve, gpu_s: float
    ) -> ev.ProfileReady:
        return ev.ProfileReady(self.now_us, camera.stream, window, curve, gpu_s)

    def _at(self, t_us: int, act: Callable[[], None]) -> None:
        self._later.append((t_us, next(self._serial), act))

    def _tell(self, event: ev.Event) -> None:
        self._outbox.append(event)
