"""The emulated world: real training and inference of all streams, charged to virtual time."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.shares import ShareHolder, inference_holder
from ekya.core.units import FULL_GPU_MILLI, US_PER_S, ModelVersion, StreamId
from ekya.models.edge.device_memory import is_out_of_memory
from ekya.models.edge.model import EdgeModel
from ekya.models.golden.golden_model import Labels
from ekya.models.training.operations import retraining_cost
from ekya.models.training.trainer import Retraining
from ekya.pipeline.costs import CostCard
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.stream_preparation import retraining_of
from ekya.planning.adaptation.drift import BLOCK_US
from ekya.simulation.emulated.camera import EmulatedCamera
from ekya.simulation.emulated.machines import Core, Machine
from ekya.simulation.emulated.preparing import PreparingWindows
from ekya.simulation.executor import Due, PreparedStep
from ekya.simulation.retraining import Checkpoint, DoesNotFitError, EpochEnd, TrainingStep, VirtualRetraining
from ekya.simulation.shares import InstantShares
from ekya.system.host import give_back_freed

MEASURE_EVERY_US = 2 * US_PER_S
"""Interval at which the used shares are reported."""

NOTICE_EVERY_US = BLOCK_US
"""Interval at which frames are analysed at the latest, where drift is to be noticed."""


class EmulatedWorld:
    """The emulated world.

    Args:
        cameras: by stream.
        golden: labels samples.
        card: costs of all work.
        proposer_operations: counted operations of proposing objects in one frame.
        capacity_milli: all GPUs together.
        notices: whether drift is reported.
        machine: that all runs on; None for a core.
        believed: what a plan takes frames to cost by; None for ``card``.
    """

    def __init__(
        self,
        cameras: Mapping[StreamId, EmulatedCamera],
        golden: Labels,
        card: CostCard,
        proposer_operations: int,
        capacity_milli: int,
        notices: bool = False,
        machine: Machine | None = None,
        believed: CostCard | None = None,
    ) -> None:
        self._machine = Core() if machine is None else machine
        self.streams: Sequence[StreamId] = sorted(cameras)
        self.retrainings: dict[StreamId, VirtualRetraining[EdgeModel]] = {}
        self.training_speed = self._machine.training_speed
        self.shares = InstantShares(capacity_milli)
        self._cameras = dict(sorted(cameras.items()))
        self._inference = {stream: camera.inference for stream, camera in self._cameras.items()}
        for stream, inference in self._inference.items():
            inference.use_queue(self._machine.queue_for(stream))
        self._golden = golden
        self._card = card
        self._prepares = False
        self._preparing = PreparingWindows(
            cameras, golden, card, proposer_operations, self.training_speed, believed
        )
        self._now_us = 0
        self._measured_us = 0
        self._notices, self._noticed_us = notices, 0
        self._script = deque(sorted(_script(self._cameras), key=lambda event: event.t_us))

    def advance(self, now_us: int) -> None:
        self._now_us = now_us
        for camera in self._cameras.values():
            camera.inference.advance(now_us)

    def pending_acts(self) -> Iterator[Due]:
        """Yields at a time first the script, then measurements, and what is noticed of frames."""
        self._set_load()
        if self._script:
            yield self._script[0].t_us, -2, self._follow_script
        yield self._measured_us + MEASURE_EVERY_US, -1, self._measure
        if self._notices:
            yield self._noticed_us + NOTICE_EVERY_US, -1, self._notice

    def ends_of_streams(self, now_us: int, at_rest: bool) -> Iterator[ev.Event]:
        """Yields the ends of streams whose frames are over, if nothing else is due."""
        for stream, camera in self._cameras.items() if at_rest else ():
            if camera.added and camera.inference.ended and not camera.end_reported:
                camera.end_reported = True
                self.shares.silence(inference_holder(stream), now_us)
                yield ev.StreamEnded(now_us, stream)

    def prepare(
        self, command: cmd.BeginPreparation, now_us: int
    ) -> tuple[list[ev.Event], Iterator[PreparedStep]]:
        self._prepares = True
        return [], self._preparing.start_preparation(command, now_us)

    def end_preparation(self, holder: ShareHolder, now_us: int) -> None:
        self._prepares = False
        self._preparing.end_preparation()

    def set_inference(self, command: cmd.SetInference, now_us: int) -> None:
        inference = self._cameras[command.stream].inference
        inference.configure(command.config, command.share_milli, now_us)

    def steps_of(
        self, command: cmd.StartRetraining, now_us: int, remote: bool
    ) -> Iterator[TrainingStep[EdgeModel]] | str:
        camera = self._cameras[command.stream]
        if remote:
            retraining = self._trained_remotely(camera, command, now_us)
            if retraining is None:
                return "there is nothing that could be sent"
            return training_steps(retraining, self._card)
        if camera.labels is None:
            return "there are no labels to train on"
        return training_steps(self._retraining(camera, camera.labels, command), self._card)

    def serve(
        self, running: VirtualRetraining[EdgeModel], best: Checkpoint[EdgeModel], now_us: int
    ) -> ModelVersion:
        camera = self._cameras[running.stream]
        camera.serve(running, best, now_us)
        return camera.version

    def roll_back(self, command: cmd.RollBack, now_us: int) -> list[ev.Event]:
        camera = self._cameras[command.stream]
        earlier = camera.roll_back(now_us)
        if earlier is None:
            return []
        return [ev.RolledBack(now_us, command.stream, camera.version, earlier, stall_us=0)]

    def finish_retraining(self, running: VirtualRetraining[EdgeModel]) -> None:
        """Remembers exemplars of a retraining that reached an epoch."""
        if running.best is not None:
            self._cameras[running.stream].remember_exemplars()

    def free_unused_weights(self) -> None:
        """Frees weights that can no longer be rolled back to; the same step may still have done so."""
        for camera in self._cameras.values():
            camera.forget_earlier()
        give_back_freed()

    def finish(self, now_us: int) -> None:
        """Completes every stream's record up to now."""
        for camera in self._cameras.values():
            camera.inference.advance(now_us)
            camera.frames.add(*camera.inference.take_rows())
            camera.frames.flush()

    def _set_load(self) -> None:
        """Tells the machine what runs from now on; retrainings go on at the pace that is left to them."""
        speeds = {
            stream: one.speed_alone for stream, one in self.retrainings.items() if one.speed_alone > 0.0
        }
        self._machine.set_load(self._inference, speeds, self._prepares)
        for stream in speeds:
            self.retrainings[stream].set_pace(self._machine.pace_of(stream), self._now_us)

    def _follow_script(self, t_us: int) -> Iterator[ev.Event]:
        """Yields the script's events up to ``t_us``, except of streams that have ended."""
        while self._script and self._script[0].t_us <= t_us:
            event = self._script.popleft()
            camera = self._cameras[event.stream]
            camera.added = True
            if not camera.end_reported:
                if isinstance(event, ev.StreamLost):
                    self.shares.silence(inference_holder(event.stream), t_us)
                yield event

    def _measure(self, t_us: int) -> Iterator[ev.Event]:
        passed_s = (t_us - self._measured_us) / US_PER_S
        self._measured_us = t_us
        yield from self.ends_of_streams(self._now_us, at_rest=True)
        for stream, camera in self._cameras.items():
            if camera.added:
                running = self.retrainings.get(stream)
                training = 0.0 if running is None else running.used_gpu_s(t_us)
                used = {ev.Role.INFERENCE: camera.inference.used_gpu_s(), ev.Role.RETRAINING: training}
                for role, gpu_s in used.items():
                    share_milli = round(FULL_GPU_MILLI * gpu_s / passed_s)
                    yield ev.ShareMeasured(t_us, stream, role, share_milli)

    def _notice(self, t_us: int) -> Iterator[ev.DriftDetected]:
        self._noticed_us = t_us
        for stream, camera in self._cameras.items():
            drift = camera.inference.drift(stream, t_us)
            if drift is not None and camera.added:
                yield drift

    def _trained_remotely(
        self, camera: EmulatedCamera, command: cmd.StartRetraining, now_us: int
    ) -> Retraining | None:
        """Labels the window at no cost if it has no labels yet; the labelled objects count in no accuracy."""
        labels = camera.labels
        if labels is None or labels.window < command.window - 1:
            labels = self._preparing.preparation_inputs(camera, command.window, now_us).label()
            self._preparing.keep_remote_labels(command.stream, labels)
        return self._retraining(camera, labels, command) if labels.can_train else None

    def _retraining(
        self, camera: EmulatedCamera, labels: StreamLabels, command: cmd.StartRetraining
    ) -> Retraining:
        camera.trained_on = labels
        return retraining_of(
            camera.model,
            command.config,
            labels,
            camera.memory,
            camera.settings,
            command.window,
        )


def _script(
    cameras: Mapping[StreamId, EmulatedCamera],
) -> Iterator[ev.StreamAdded | ev.StreamLost | ev.StreamBack]:
    for stream, camera in cameras.items():
        yield ev.StreamAdded(camera.joins_us, stream, camera.options)
        yield from camera.misfortunes


def training_steps(retraining: Retraining, card: CostCard) -> Iterator[TrainingStep[EdgeModel]]:
    """Yields the preparation of a retraining and each of its epochs."""
    prepare_gpu_s, epoch_gpu_s = card.retraining_gpu_s(retraining_cost(retraining))

    def run_epoch() -> EpochEnd[EdgeModel]:
        with _fits():
            result = retraining.run_epoch()
        gpu_s = prepare_gpu_s + result.epoch * epoch_gpu_s
        return EpochEnd(result.epoch, result.validation_accuracy, gpu_s, retraining.model)

    def prepare() -> None:
        with _fits():
            retraining.prepare_training()

    yield TrainingStep(prepare_gpu_s, prepare)
    for _ in range(retraining.config.epochs):
        yield TrainingStep(epoch_gpu_s, run_epoch)


@contextmanager
def _fits() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise DoesNotFitError(f"{type(error).__name__}: {error}") from error
        raise
