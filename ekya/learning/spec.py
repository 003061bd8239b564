"""What a fleet file says of the edge models."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ekya.learning.cuts import CUTS, DEFAULT_ARCHITECTURE, block_names


class EdgeSpec(BaseModel):
    """The compressed classifier that every stream begins with.

    Attributes:
        model: architecture; ``docs/edge.md`` names their blocks.
        weights: the common base, a model of Ekya or torchvision's ImageNet weights; None begins with fresh
            weights.
        resolution: side in pixels of the square that objects are resized to for training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = DEFAULT_ARCHITECTURE
    weights: Path | None = None
    resolution: int = Field(default=32, ge=16, le=512)

    @field_validator("model")
    @classmethod
    def _is_there(cls, model: str) -> str:
        if model not in CUTS:
            raise ValueError(f"there is no edge model {model!r}; use one of {', '.join(CUTS)}")
        return model

    def too_many(self, trainable_blocks: int) -> str | None:
        """What is wrong with training so many blocks, with the remedy; None if the model has them."""
        names = block_names(self.model)
        if trainable_blocks <= len(names):
            return None
        return (
            f"{trainable_blocks} is more than a {self.model} has; its blocks, from the last, are "
            f"{', '.join(reversed(names))}; use at most {len(names)}"
        )
