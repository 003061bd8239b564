"""Decides which frame of a stream is analysed, followed or passed over, live and on virtual time.

Every frame gets an answer, its own or that of the newest frame with boxes. Of frames that come faster than
the share serves them, the newest goes first and those that waited are passed over: live,
``SourceProcess.poll`` hands over the newest picture only; on virtual time, a frame takes the place of the one
that waits. Without a share no frame is analysed.
"""

from enum import Enum, auto

from ekya.core.configs import InferenceConfig
from ekya.pipeline.inference import FrameSteps


class FrameWay(Enum):
    """What is done with a frame that has arrived."""

    ANALYSE = auto()
    """The edge model, or the golden detector under a λ of it, finds or names its objects."""

    FOLLOW = auto()
    """Boxes of the golden detector are followed into it."""

    PASS_OVER = auto()
    """The newest frame with boxes answers it."""


def is_due_in_order(frame: int, every: int) -> bool:
    """Returns whether λ asks for a frame where every frame is offered, in order."""
    return frame % every == 0


def is_due_after(analysed: int, frame: int, every: int) -> bool:
    """Returns whether λ asks for a frame where only newest frames are offered.

    Of ``every`` frames the first that is offered is due, since the one in whose turn it comes may be lost.

    Args:
        analysed: number of the newest frame that was due; -1 before the first.
        frame, every: number of the frame, and how many frames λ takes one of.
    """
    return frame // every > analysed // every


def needs_objects(steps: FrameSteps, t_us: int, due: bool) -> bool:
    """Returns whether a frame's objects are to be found: to analyse it, to keep it, or since it is free."""
    return steps.proposes_free or due or steps.collector.wants(t_us)


def choose_way(config: InferenceConfig, due: bool, due_frame_waits: bool = False) -> FrameWay:
    """Returns what is done with a frame.

    Args:
        config: λ in force.
        due: whether it asks for the frame.
        due_frame_waits: whether an older frame that is due still waits for the share.
    """
    if due:
        return FrameWay.ANALYSE
    return FrameWay.FOLLOW if config.by_golden and not due_frame_waits else FrameWay.PASS_OVER
