"""Resolves the paths in a file of settings, and makes paths relative again."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from ekya.core.errors import UserError
from ekya.system.files import FOLDER, expand_home, require_utf8

_Model = TypeVar("_Model", bound=BaseModel)


def find_files(model: _Model, origin: str, folders: Sequence[Path]) -> _Model:
    """Returns the model with absolute paths; a relative path is searched in the folders, in this order.

    Raises:
        UserError: a file or folder is in none of them, or is of the other kind.
    """
    return model.model_copy(update=_found(model, origin, folders, ()))


def _found(
    model: BaseModel, origin: str, folders: Sequence[Path], keys: tuple[str, ...]
) -> dict[str, object]:
    def visit(value: object, keys: tuple[str, ...], folder: bool) -> object:
        match value:
            case Path():
                return _find(value, f"{origin}: {'.'.join(keys)}", folders, folder)
            case BaseModel():
                return value.model_copy(update=_found(value, origin, folders, keys))
            case tuple():
                return tuple(visit(one, (*keys, *_name(one)), folder) for one in value)
            case _:
                return value

    seen = {
        name: visit(getattr(model, name), (*keys, name), FOLDER in field.metadata)
        for name, field in type(model).model_fields.items()
    }
    # Unchanged values are left out: an updated field would count as set in the file.
    return {name: value for name, value in seen.items() if value != getattr(model, name)}


def _name(value: object) -> tuple[str, ...]:
    """Returns the name of a list element in an error message: its id, if it has one."""
    name = getattr(value, "id", None)
    return (str(name),) if name is not None else ()


def _find(path: Path, where: str, folders: Sequence[Path], folder: bool) -> Path:
    candidates = [one / expand_home(path) for one in folders]
    for candidate in candidates:
        if candidate.is_dir() if folder else candidate.is_file():
            found = candidate.resolve()
            require_utf8(str(found))  # the target of a link
            return found
    if not folder and any(candidate.is_dir() for candidate in candidates):
        raise UserError(f"{where}: {path} is a folder; name a file in it")
    if folder and any(candidate.exists() for candidate in candidates):
        raise UserError(f"{where}: {path} is not a folder; name the folder that it lies in")
    raise UserError(
        f"{where}: {path} does not exist; correct the path, which begins at {folders[0].resolve()}"
    )


def relative_paths(value: object, folders: Sequence[Path]) -> object:
    """Returns a value of a YAML file with the absolute paths in one of the folders made relative to it."""
    match value:
        case dict():
            return {key: relative_paths(one, folders) for key, one in value.items()}
        case list() | tuple():
            return [relative_paths(one, folders) for one in value]
        case str() if value.startswith("/"):
            relative = (Path(value).relative_to(one) for one in folders if Path(value).is_relative_to(one))
            return str(next(relative, value))
    return value
