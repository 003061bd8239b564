"""Reads YAML files, in which no key may stand twice."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ekya.core.errors import UserError
from ekya.system.files import user_errors


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML's own loader takes the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            name, line = (key.tag, str(key.value)), key.start_mark.line + 1
            if name in lines and key.value != "<<":  # all that is merged counts
                raise UserError(
                    f"lines {lines[name]} and {line}: the key '{key.value}' stands there twice, and only one "
                    "can count; keep one of them, or join them"
                )
            lines[name] = line
        return node


def read_mapping(path: Path) -> Mapping[str, object]:
    """Returns the keys and values of a YAML file.

    Raises:
        UserError: the file does not exist, is not UTF-8 YAML with a mapping at its top, or has a key twice.
    """
    if not path.exists():
        raise UserError(f"{path}: there is no such file; check the path")
    try:
        with user_errors(path):
            text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8 text") from error
    try:
        raw = _Loader(text).get_single_data()
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise UserError(f"{path}: {where} is not YAML ({error.problem}); correct that line") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first_line = str(error).splitlines()[0]
        raise UserError(f"{path}: this is not YAML ({first_line}); correct it") from error
    if not isinstance(raw, Mapping):
        raise UserError(f"{path}: the file has no keys at its top, as in 'key: value'; add them")
    return raw
