"""A public method says what it does, here or in the protocol that it implements."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "ekya"


def parsed_classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield path, node


def methods_of(owner: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def is_protocol(owner: ast.ClassDef) -> bool:
    """Whether others implement it: a protocol, or an abstract class."""
    return any(ast.unparse(base).startswith(("Protocol", "ABC")) for base in owner.bases)


def test_public_methods_have_docstrings_unless_a_protocol_describes_them():
    classes = list(parsed_classes())
    described = {
        method.name
        for _, owner in classes
        if is_protocol(owner)
        for method in methods_of(owner)
        if ast.get_docstring(method)
    }
    missing = [
        f"{path.relative_to(ROOT)}:{method.lineno}: {owner.name}.{method.name}"
        for path, owner in classes
        if not owner.name.startswith("_")
        for method in methods_of(owner)
        if not method.name.startswith("_")
        and not ast.get_docstring(method)
        and not any("setter" in ast.unparse(one) for one in method.decorator_list)
        and (is_protocol(owner) or method.name not in described)
    ]
    assert described
    assert missing == []
