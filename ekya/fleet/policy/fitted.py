"""Hosts as models see them that were fitted to profiles of their kinds of machines (Deep-Edge §IV.C.1)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile

from ekya.core.speed import SpeedCurve
from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.deep_edge.estimates import EdgeEstimates, EdgeLimits, EdgeTraining
from ekya.fleet.policy.deep_edge.profile import INFERENCE
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import NodeState
from ekya.fleet.policy.rooms import Room


@dataclass(frozen=True, slots=True)
class FittedHosts:
    """Models of the kinds of machines that were profiled.

    Attributes:
        estimates: of times and states.
        limits: range of the profiled batches, and the errors of the estimates.
        blocks: trained blocks of the profiled training, by kind of machine; times of another do not hold.
    """

    estimates: EdgeEstimates
    limits: EdgeLimits
    blocks: Mapping[str, int]

    def room_by_models(self, room: Room, offer: TrainingOffer) -> Room | None:
        """Returns a room with the models' speeds of an offer's training, and of inference beside it.

        Units beside which the host's memory is too small are cut off. Returns None where its state is not
        known, or nothing like the training was profiled on its kind.
        """
        batch, (least, most) = offer.config.batch_size, (self.limits.batch_min, self.limits.batch_max)
        if room.machine is None or not least <= batch <= most:
            return None
        kind, state = room.machine
        if self.blocks.get(kind) != offer.config.trainable_blocks:
            return None
        idle_s = self.estimates.compute_s(EdgeTraining(kind, NodeState(), batch))

        def sample_s(share_milli: int) -> float:
            # A profile may lack small shares, at which no model is faster than the host's own curve allows.
            asked = EdgeTraining(kind, state, batch, share_milli)
            return max(self.estimates.compute_s(asked), idle_s / room.speed.speed_at(share_milli))

        shares = [min(units * room.step_milli, FULL_GPU_MILLI) for units in range(1, len(room.loss) + 1)]
        whole_s = sample_s(FULL_GPU_MILLI)
        speeds = accumulate((min(1.0, whole_s / sample_s(share)) for share in shares), max)
        points = {0: 0.0} | dict(zip(shares, speeds, strict=True)) | {FULL_GPU_MILLI: 1.0}
        after = [self.estimates.state_after(EdgeTraining(kind, state, batch, share)) for share in shares]
        fitting = takewhile(lambda one: one.mem * (1 + self.limits.mem_error) <= self.limits.mem, after)
        alone_s = self.estimates.exec_s(kind, INFERENCE, state)
        slower = (self.estimates.exec_s(kind, INFERENCE, one) / alone_s for one in fitting)
        slowdown = tuple((1 + self.limits.exec_error) * most for most in accumulate(slower, max))
        return replace(
            room,
            loss=room.loss[: len(slowdown)],
            speed=SpeedCurve(tuple(points.items())),
            strength=offer.gpu_s / (offer.epochs * offer.crops * (1 + offer.replayed) * whole_s),
            slowdown=slowdown,
        )
