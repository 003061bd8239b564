"""Dataclasses that cross sites. A receiver makes no others."""

from ekya.core.configs import RetrainConfig
from ekya.core.speed import SpeedCurve
from ekya.fleet.policy.loans import Loan, LoanPart
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import NodeState
from ekya.fleet.policy.rooms import Room, ServedStream
from ekya.fleet.run.elsewhere import Interrupted
from ekya.fleet.run.host_facts import Link, SiteHostFacts
from ekya.fleet.run.lending import Lent
from ekya.fleet.run.live.orders import Neighbour, RunOrder, RunState
from ekya.fleet.run.peers import Answer

COORDINATION: tuple[type, ...] = (
    Answer,
    SiteHostFacts,
    Interrupted,
    Lent,
    Link,
    Loan,
    LoanPart,
    Neighbour,
    NodeState,
    TrainingOffer,
    RetrainConfig,
    Room,
    RunOrder,
    RunState,
    ServedStream,
    SpeedCurve,
)
"""Between the driver, the coordinator or a doctor, and sites."""


def training_types() -> tuple[type, ...]:
    """Returns those between the processes of a training; they need torch, which a coordinator does not."""
    from ekya.fleet.run.training.messages import LessonPlan, Push, ValidationCrops
    from ekya.fleet.run.training.server import ServedEpoch
    from ekya.fleet.run.training.workers import EpochPlan, EpochWork, Shard, WorkerId
    from ekya.models.training.frames import FrameObjects, LabelledFrames
    from ekya.models.training.labelled import LabelledCrops
    from ekya.models.training.optimizer import AdamWRecipe, SgdRecipe
    from ekya.models.training.trainer import EpochResult

    return (
        AdamWRecipe,
        ServedEpoch,
        EpochPlan,
        EpochResult,
        FrameObjects,
        LabelledCrops,
        LabelledFrames,
        LessonPlan,
        Push,
        SgdRecipe,
        Shard,
        ValidationCrops,
        EpochWork,
        WorkerId,
    )
