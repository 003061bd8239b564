"""Executor of the emulated world: turns commands into effects, as a discrete-event simulation."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.gpus import DidNotFit
from ekya.core.shares import ShareHolder, inference_holder, preparation_holder, retraining_holder
from ekya.core.speed import LINEAR
from ekya.core.units import FULL_GPU_MILLI, US_PER_S, StreamId
from ekya.models.edge.device_memory import is_out_of_memory
from ekya.models.edge.model import EdgeModel
from ekya.models.training.activation_cache import ActivationCache
from ekya.models.training.trainer import Retraining
from ekya.pipeline.costs import CostCard
from ekya.pipeline.inference import Classifier
from ekya.pipeline.labels import Labels, StreamLabels
from ekya.pipeline.retrain_setup import retraining_of
from ekya.simulation.emulated.camera import EmulatedCamera
from ekya.simulation.emulated.preparing import PreparingWindows
from ekya.simulation.emulated.training import training_steps
from ekya.simulation.retraining import EpochEnd, TrainingStep, VirtualRetraining
from ekya.simulation.shares import InstantShares, ShareCommandT
from ekya.system.memory import give_back_freed

MEASURE_EVERY_US = 2 * US_PER_S
"""Interval at which the used shares are reported."""

_NOTHING_TO_SEND = "there is nothing that could be sent"


class EmulatedExecutor:
    """Executor of the emulated world.

    Args:
        cameras: by stream.
        golden: labels samples.
        card: costs of all work.
        proposer_operations: counted operations of proposing objects in one frame.
        capacity_milli: all GPUs together.
        checkpoint_delay_us: delay of a retraining by a checkpoint. Inference is not delayed: the new
            weights are prepared beside the serving ones.
    """

    def __init__(
        self,
        cameras: Mapping[StreamId, EmulatedCamera],
        golden: Labels,
        card: CostCard,
        proposer_operations: int,
        capacity_milli: int,
        checkpoint_delay_us: int,
    ) -> None:
        self._cameras = dict(cameras)
        self._golden = golden
        self._card = card
        self._preparing = PreparingWindows(cameras, golden, card, proposer_operations)
        self._checkpoint_delay_us = checkpoint_delay_us
        self._shares = InstantShares(capacity_milli)
        self._now_us = 0
        self._measured_us = 0
        self._outbox: list[ev.Event] = []
        self._scripted = deque(sorted(self._script(), key=lambda event: event.t_us))
        self._tell_scripted(0)

    @property
    def now_us(self) -> int:
        """Current virtual time."""
        return self._now_us

    def charge(self, duration_us: int) -> None:
        """Advances time for work of the loop itself, such as planning."""
        self._now_us += duration_us

    def wait(self, until_us: int) -> Batch:
        """Advances to the next events and returns them; streams follow the clock."""
        while not self._outbox:
            due = self._next_due(until_us)
            if due is None:
                self._move_to(max(until_us, self._now_us))
                self._tell_of_ends()
                break
            at_us, act = due
            self._move_to(max(at_us, self._now_us))
            act(at_us)
        # Share changes are reported with the next event, never alone: no decision depends on them.
        events, self._outbox = (*self._shares.take_told(), *self._outbox), []
        return Batch(self._now_us, events)

    def execute(self, commands: Sequence[cmd.Command]) -> None:
        """Executes commands at the current virtual time."""
        for command in commands:
            self._execute(command)
        if any(isinstance(command, cmd.EndPreparation) for command in commands):
            for camera in self._cameras.values():
                # Only now: in the same step the shadow gate may still roll back to them.
                camera.forget_earlier()
            give_back_freed()

    def receive(self, command: cmd.StartRetraining, epochs: int, over: bool) -> None:
        """Receives weights of a remote retraining; implements the fleet's ``Home``."""
        camera = self._cameras[command.stream]
        coming = camera.retraining
        if coming is None or not coming.by_snapshots or coming.job != command.job:
            retraining = self._trained_remotely(camera, command)
            if retraining is None:
                if over:
                    self._failed(command, _NOTHING_TO_SEND)
                return
            steps = training_steps(retraining, self._card)
            coming = VirtualRetraining(command, steps, LINEAR, self._now_us, by_snapshots=True)
            camera.retraining = coming
        self._outbox.extend(coming.receive(epochs, self._now_us))
        if over:
            self._finished(command.stream)

    def finish(self) -> None:
        """Completes every stream's record up to the current time."""
        for camera in self._cameras.values():
            camera.inference.advance(self._now_us)
            camera.frames.add(*camera.inference.take_rows())
            camera.frames.flush()

    def _execute(self, command: cmd.Command) -> None:
        match command:
            case cmd.BeginPreparation():
                self._change(preparation_holder(command.window), command, self._begin_preparation)
            case cmd.EndPreparation():
                self._preparing.end()
                self._shares.leave(preparation_holder(command.window), self._now_us)
            case cmd.SetInference():
                self._change(inference_holder(command.stream), command, self._set_inference)
            case cmd.StartRetraining() if command.elsewhere is not None:
                self._start(command)
            case cmd.StartRetraining():
                self._change(retraining_holder(command.stream, command.job), command, self._start)
            case cmd.ResizeRetraining():
                self._change(retraining_holder(command.stream, command.job), command, self._resize)
            case cmd.ServeModel():
                self._serve(command)
            case cmd.RollBack():
                self._roll_back(command)
            case cmd.StopRetraining():
                self._stop(command.stream)
                self._shares.leave(retraining_holder(command.stream, command.job), self._now_us)
            case cmd.KeepServing():
                pass  # the serving weights stay
            case cmd.SetAside() | cmd.RestartWorker():
                raise ValueError("nothing dies in the emulated world")

    def _change(
        self, holder: ShareHolder, command: ShareCommandT, act: Callable[[ShareCommandT], None]
    ) -> None:
        self._shares.carry_out(holder, command, self._now_us, act)

    def _set_inference(self, command: cmd.SetInference) -> None:
        inference = self._cameras[command.stream].inference
        inference.configure(command.config, command.share_milli, self._now_us)

    def _resize(self, command: cmd.ResizeRetraining) -> None:
        retraining = self._cameras[command.stream].retraining
        if retraining is not None:
            retraining.resize(command.share_milli, self._now_us)

    def _script(self) -> Iterator[ev.StreamAdded | ev.StreamLost | ev.StreamBack]:
        for stream, camera in sorted(self._cameras.items()):
            yield ev.StreamAdded(camera.joins_us, stream, camera.options)
            yield from camera.misfortunes

    def _tell_scripted(self, t_us: int) -> None:
        """Emits the script's events up to ``t_us``, except of streams that have ended."""
        while self._scripted and self._scripted[0].t_us <= t_us:
            event = self._scripted.popleft()
            camera = self._cameras[event.stream]
            camera.added = True
            if not camera.told_of_end:
                self._outbox.append(event)
                if isinstance(event, ev.StreamLost):
                    self._shares.silence(inference_holder(event.stream), t_us)

    def _next_due(self, until_us: int) -> tuple[int, Callable[[int], None]] | None:
        """Returns the earliest action up to ``until_us``; actions at the same time have a fixed order."""
        due: list[tuple[int, int, Callable[[int], None]]] = [
            (self._measured_us + MEASURE_EVERY_US, 0, self._measure)
        ]
        if self._scripted:
            due.append((self._scripted[0].t_us, -1, self._tell_scripted))
        if self._preparing.due_us is not None:
            due.append((self._preparing.due_us, 1, self._finish_preparation_step))
        for place, stream in enumerate(sorted(self._cameras)):
            retraining = self._cameras[stream].retraining
            if retraining is not None and retraining.due_us is not None:
                due.append((retraining.due_us, 2 + place, self._training_step(stream)))
        at_us, _, act = min(due, key=lambda item: item[:2])
        return (at_us, act) if at_us <= until_us else None

    def _move_to(self, now_us: int) -> None:
        self._now_us = now_us
        for camera in self._cameras.values():
            camera.inference.advance(now_us)

    def _there(self) -> list[tuple[StreamId, EmulatedCamera]]:
        return [(stream, camera) for stream, camera in sorted(self._cameras.items()) if camera.added]

    def _tell_of_ends(self) -> None:
        for stream, camera in self._there():
            if camera.inference.ended and not camera.told_of_end:
                camera.told_of_end = True
                self._outbox.append(ev.StreamEnded(self._now_us, stream))
                self._shares.silence(inference_holder(stream), self._now_us)

    def _measure(self, t_us: int) -> None:
        passed_s = (t_us - self._measured_us) / US_PER_S
        self._measured_us = t_us
        self._tell_of_ends()
        for stream, camera in self._there():
            training = 0.0 if camera.retraining is None else camera.retraining.used_gpu_s(t_us)
            used = {ev.Role.INFERENCE: camera.inference.used_gpu_s(), ev.Role.RETRAINING: training}
            for role, gpu_s in used.items():
                share_milli = round(FULL_GPU_MILLI * gpu_s / passed_s)
                self._outbox.append(ev.ShareMeasured(t_us, stream, role, share_milli))

    def _begin_preparation(self, command: cmd.BeginPreparation) -> None:
        self._outbox.extend(self._newly_kept())
        self._outbox.extend(self._preparing.begin(command, self._now_us))

    def _finish_preparation_step(self, t_us: int) -> None:
        self._outbox.extend(self._preparing.finish_step(t_us))

    def _newly_kept(self) -> Iterator[ev.ModelCached]:
        """Yields models of the previous window, which can serve from the next one on."""
        for stream, camera in sorted(self._cameras.items()):
            model = camera.keep(self._golden.background)
            if model is not None:
                yield ev.ModelCached(self._now_us, stream, model)

    def _start(self, command: cmd.StartRetraining) -> None:
        camera, steps = self._cameras[command.stream], self._steps_of(command)
        if steps is None:
            lacks = "there are no labels to train on" if command.elsewhere is None else _NOTHING_TO_SEND
            self._failed(command, lacks)
            return
        camera.retraining = VirtualRetraining(command, steps, LINEAR, self._now_us)

    def _steps_of(self, command: cmd.StartRetraining) -> Iterator[TrainingStep[EdgeModel]] | None:
        camera, elsewhere = self._cameras[command.stream], command.elsewhere
        if elsewhere is not None and elsewhere.trained_in is not None:
            return self._kept(camera, command, elsewhere.trained_in)
        if elsewhere is not None:
            retraining = self._trained_remotely(camera, command)
        elif camera.labels is None:
            return None
        else:
            passed = self._preparing.passed_by(command.stream, camera.model)
            retraining = self._retraining(camera, camera.labels, command, passed)
        return None if retraining is None else training_steps(retraining, self._card)

    def _kept(
        self, camera: EmulatedCamera, command: cmd.StartRetraining, trained_in: int
    ) -> Iterator[TrainingStep[EdgeModel]] | None:
        if camera.kept is None or camera.labels is None or trained_in not in camera.kept.models:
            return None
        model = camera.kept.models[trained_in]
        now = self._preparing.of(camera, command.window, self._now_us)
        serving = replace(now, serving=Classifier(model, camera.settings.classes))
        end = EpochEnd(1, serving.serving_accuracy(camera.labels), 0.0, lambda: model)
        return iter([TrainingStep(0.0, lambda: end)])

    def _trained_remotely(self, camera: EmulatedCamera, command: cmd.StartRetraining) -> Retraining | None:
        """Labels the window at no cost if it has no labels yet; the labelled objects count in no accuracy."""
        labels = camera.labels
        if labels is None or labels.window != command.window - 1:
            labels = self._preparing.of(camera, command.window, self._now_us).label()
            self._preparing.keep_labels(command.stream, labels)
        return self._retraining(camera, labels, command) if labels.can_train else None

    def _retraining(
        self,
        camera: EmulatedCamera,
        labels: StreamLabels,
        command: cmd.StartRetraining,
        passed: ActivationCache | None = None,
    ) -> Retraining:
        return retraining_of(
            camera.model,
            command.config,
            labels,
            camera.memory,
            camera.settings,
            command.window,
            passed=passed,
        )

    def _failed(self, command: cmd.StartRetraining, reason: str) -> None:
        self._outbox.append(ev.RetrainFailed(self._now_us, command.stream, command.job, reason))
        self._shares.leave(retraining_holder(command.stream, command.job), self._now_us)

    def _training_step(self, stream: StreamId) -> Callable[[int], None]:
        def act(t_us: int) -> None:
            retraining = self._cameras[stream].retraining
            if retraining is None:
                return
            try:
                told = retraining.finish_step(t_us)
            except Exception as error:
                if not retraining.is_local or not is_out_of_memory(error):
                    raise
                self._out_of_memory(retraining, t_us, error)
                return
            self._outbox.extend(told)
            if any(isinstance(event, ev.RetrainFinished) for event in told):
                self._finished(stream)

        return act

    def _out_of_memory(self, retraining: VirtualRetraining[EdgeModel], t_us: int, error: Exception) -> None:
        """Ends the retraining with its best weights so far; its γ is not tried again in the window."""
        reason = f"{type(error).__name__}: {error}"
        stream, what = retraining.stream, DidNotFit.of(retraining.config)
        self._outbox.append(ev.MemoryShort(t_us, stream, retraining.window, what, reason))
        self._outbox.append(ev.RetrainFailed(t_us, stream, retraining.job, reason))
        self._finished(stream)

    def _finished(self, stream: StreamId) -> None:
        """Releases the share of a finished retraining; its weights stay available until the next one."""
        camera = self._cameras[stream]
        if camera.retraining is not None:
            camera.retraining.end(self._now_us)
            self._shares.leave(retraining_holder(stream, camera.retraining.job), self._now_us)
            camera.remember()

    def _serve(self, command: cmd.ServeModel) -> None:
        camera = self._cameras[command.stream]
        retraining = camera.retraining
        if retraining is None or retraining.job != command.job:
            return
        accuracy = camera.serve_best(self._now_us)
        if accuracy is None:
            return
        if retraining.due_us is not None:
            retraining.delay(self._checkpoint_delay_us)
        told = ev.ModelSwapped(
            self._now_us, command.stream, camera.version, command.job, accuracy, stall_us=0
        )
        self._outbox.append(told)

    def _roll_back(self, command: cmd.RollBack) -> None:
        camera = self._cameras[command.stream]
        earlier = camera.roll_back(self._now_us)
        if earlier is not None:
            told = ev.RolledBack(self._now_us, command.stream, camera.version, earlier, stall_us=0)
            self._outbox.append(told)

    def _stop(self, stream: StreamId) -> None:
        camera = self._cameras[stream]
        retraining = camera.retraining
        if retraining is not None and (retraining.by_snapshots or retraining.due_us is not None):
            camera.remember()
        camera.retraining = None
