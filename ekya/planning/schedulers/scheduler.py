"""Interface of schedulers: what they need, their options, and the types of their values."""

from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.plan import Plan
from ekya.core.units import FULL_GPU_MILLI
from ekya.core.view import WindowView


@dataclass(frozen=True, slots=True)
class Needs:
    """Preparation that a scheduler pays for (paper Figure 5), and decisions that it fixes for good.

    Attributes:
        labels: golden labels on a sample of the last window.
        inference_profile: relative accuracy and needed share of each λ.
        micro_profile: expected accuracy and GPU-seconds of each γ.
        fixed_gamma: its γ are fixed: they are not picked again at the granted shares.
        fixed_shares: its shares are fixed: shares left over by rounding are not given out.
        true_profile: true results of γ and models replace every estimate, at no cost. Only the trace world
            has them.
        elsewhere: γ are trained off the local GPUs. A live run cannot do that.
        kept_models: for every earlier window a model that can serve again, trained off the local GPUs. A
            live run has none.
        early_parts: part of a retraining's gain that serves before its end, from checkpoints (paper §5). The
            paper's own planners do not receive it.
    """

    labels: bool
    inference_profile: bool
    micro_profile: bool
    fixed_gamma: bool = False
    fixed_shares: bool = False
    true_profile: bool = False
    elsewhere: bool = False
    kept_models: bool = False
    early_parts: bool = False


class Scheduler(Protocol):
    """Decides from a snapshot alone: the same view gives the same plan."""

    @property
    def name(self) -> str:
        """Name in the registry."""

    @property
    def needs(self) -> Needs:
        """Preparation that the scheduler needs."""

    def plan(self, view: WindowView) -> Plan:
        """Returns what each stream gets from now on; shares are multiples of δ within the capacity."""


class SchedulerOptions(BaseModel):
    """Base of a scheduler's options: a field is a key, and its title is the form of the value in messages."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _in_range(inference_part_milli: int) -> int:
    if not 0 <= inference_part_milli <= FULL_GPU_MILLI:
        raise UserError(
            f"scheduler: an inference part of {inference_part_milli} thousandths is out of range; "
            "choose 0 to 1000"
        )
    return inference_part_milli


def gamma_word(config: RetrainConfig) -> str:
    """Returns γ in the format of ``gamma=``."""
    parts = (
        config.epochs,
        config.batch_size,
        config.head_width,
        config.trainable_blocks,
        config.data_fraction,
    )
    return "/".join(map(str, parts))


def _read_gamma(word: object) -> object:
    """Returns the γ of a word in the format of ``gamma_word``; other values stay."""
    if not isinstance(word, str):
        return word
    epochs, batch, head, blocks, data = word.split("/")
    config = RetrainConfig(int(epochs), int(batch), int(head), int(blocks), float(data))
    possible = (
        config.epochs >= 1 and config.batch_size >= 2 and min(config.head_width, config.trainable_blocks) >= 0
    )
    if not possible or not 0 < config.data_fraction <= 1:
        raise ValueError(word)
    return config


InferencePart = Annotated[int, AfterValidator(_in_range), Field(title="THOUSANDTHS")]
"""Thousandths of a stream's share that inference gets."""

Gamma = Annotated[
    RetrainConfig | None, BeforeValidator(_read_gamma), Field(title="EPOCHS/BATCH/HEAD/BLOCKS/DATA")
]
"""The only γ used; each scheduler defines what None means."""

Mbps = Annotated[FiniteFloat, Field(gt=0, title="MBPS")]
"""Rate of a link in megabits a second."""
