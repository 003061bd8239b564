"""Options of schedulers: a scheduler's own model of them, and the types of their values."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI


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
