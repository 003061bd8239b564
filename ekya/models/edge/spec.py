"""Schema of the edge models in a fleet file."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ekya.models.edge.cuts import DEFAULT_ARCHITECTURE, NAMES, Task, block_names


class EdgeSpec(BaseModel):
    """The compressed classifier that every stream starts with.

    Attributes:
        task: what the model does.
        model: architecture; ``docs/edge.md`` lists the blocks of each.
        weights: of the common base model, Ekya's or torchvision's ImageNet weights; None starts with fresh
            ones.
        resolution: side in pixels of the square that objects are resized to for training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Task = Task.CLASSIFY
    model: str = DEFAULT_ARCHITECTURE
    weights: Path | None = None
    resolution: int = Field(default=32, ge=16, le=512)

    @field_validator("model")
    @classmethod
    def _is_there(cls, model: str) -> str:
        if model not in NAMES:
            raise ValueError(f"there is no edge model {model!r}; use one of {', '.join(NAMES)}")
        return model

    def too_many(self, trainable_blocks: int) -> str | None:
        """Returns an error message with the remedy if the model has fewer blocks than this, else None."""
        names = block_names(self.model)
        if trainable_blocks <= len(names):
            return None
        return (
            f"{trainable_blocks} is more than a {self.model} has; its blocks, from the last, are "
            f"{', '.join(reversed(names))}; use at most {len(names)}"
        )
