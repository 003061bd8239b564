"""Reads a YAML file, resolves the paths in it, and makes paths relative again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel

from ekya.core.errors import UserError
from ekya.system.files import FOLDER, user_errors

_Model = TypeVar("_Model", bound=BaseModel)


def read_mapping(path: Path) -> Mapping[str, object]:
    """Returns the keys and values of a YAML file.

    Raises:
        UserError: the file does not exist, or is not UTF-8 YAML with a mapping at its top.
    """
    if not path.exists():
        raise UserError(f"{path}: there is no such file; check the path")
    try:
        with user_errors(path):
            text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8 text") from error
    try:
        raw = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise UserError(f"{path}: {where} is not YAML ({error.problem}); correct that line") from error
    except (yaml.YAMLError, ValueError) as error:
        first_line = str(error).splitlines()[0]
        raise UserError(f"{path}: this is not YAML ({first_line}); correct it") from error
    if not isinstance(raw, Mapping):
        raise UserError(f"{path}: the file has no keys at its top, as in 'key: value'; add them")
    return raw


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
    candidates = [one / path.expanduser() for one in folders]
    for candidate in candidates:
        if candidate.is_dir() if folder else candidate.is_file():
            return candidate.resolve()
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
