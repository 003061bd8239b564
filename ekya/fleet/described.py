"""Files of a fleet that people write: their schemas are pydantic models."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ekya.config.keys_in_words import describe_first_problem
from ekya.core.errors import UserError
from ekya.system.yaml_file import read_mapping

_Model = TypeVar("_Model", bound=BaseModel)


class DescribedPart(BaseModel):
    """A file, or a part of it, that knows all its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


def read_described(path: Path, model: type[_Model], example: str = "") -> _Model:
    """Reads a YAML file.

    Args:
        path: of the file.
        model: its schema.
        example: shown where the file does not fit the schema.

    Raises:
        UserError: one sentence with file, key and remedy.
    """
    raw = read_mapping(path)
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise UserError(f"{path}: {describe_first_problem(error, raw, model)}{example}") from None
