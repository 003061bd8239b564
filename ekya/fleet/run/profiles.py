"""Job profiles on disk: time per epoch by kind of node and number of GPUs (ANDREAS §III).

The paper's Job Profiler keeps them in MariaDB; a JSON file is enough for one manager. In seconds::

    {"profiles": {"LSTM-32": {"V100": {"1": 75.0, "2": 49.5}, "TURING": {"1": 135.0}}}}
"""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ekya.config.keys_in_words import describe_first_problem
from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.fleet.policy.job import EpochUs

_Gpus = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1)]


class _ProfileFile(BaseModel):
    """Schema of the file."""

    model_config = ConfigDict(extra="forbid")

    profiles: dict[_Name, dict[_Name, dict[_Gpus, _Seconds]]]


def load_profiles(path: Path) -> dict[str, EpochUs]:
    """Loads all profiles of the file, by name.

    Raises:
        UserError: the file does not exist or is not a valid profile file.
    """
    raw = _read(path)
    try:
        read = _ProfileFile.model_validate(raw)
    except ValidationError as error:
        raise UserError(f"{path}: {describe_first_problem(error, raw, _ProfileFile)}") from error
    return {
        name: {
            (kind, gpus): max(1, round(epoch_s * US_PER_S))
            for kind, by_gpus in kinds.items()
            for gpus, epoch_s in by_gpus.items()
        }
        for name, kinds in read.profiles.items()
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; check the path") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: is no JSON that can be read ({error}); write it anew") from error
    if not isinstance(raw, dict):
        raise UserError(f'{path}: holds no object; it has to begin with {{"profiles": ...')
    return raw
