"""Reads YAML files, in which no key may stand twice."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from ekya.core.errors import UserError
from ekya.system.files import user_errors


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
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        _refuse_repeated_keys(root, path)
        raw = loader.construct_document(root) if root is not None else None
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


def _refuse_repeated_keys(root: yaml.Node | None, path: Path) -> None:
    """Refuses what YAML forbids and its library takes: of a key that stands twice it keeps the last."""
    left, seen = [root], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            lines: dict[tuple[str, str], int] = {}
            for key, value in node.value:
                left += (key, value)
                if not isinstance(key, yaml.ScalarNode) or key.value == "<<":  # all that is merged counts
                    continue
                name, line = (key.tag, key.value), key.start_mark.line + 1
                if name in lines:
                    raise UserError(
                        f"{path}: lines {lines[name]} and {line}: the key '{key.value}' stands there twice, "
                        "and only one can count; keep one of them, or join them"
                    )
                lines[name] = line
        elif isinstance(node, yaml.SequenceNode):
            left += node.value
