"""Audits the code for what runs a program that is hidden in data: unpickling and its like.

Ray pickles what its own processes send each other, over loopback and with its token; see the threat model.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path for folder in ("ekya", "experiments", "docs/hooks") for path in (ROOT / folder).rglob("*.py")
)

UNSAFE_MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
NEEDS = {
    "torch.load": ("weights_only", True),
    "torch.hub.load_state_dict_from_url": ("weights_only", True),
    "get_state_dict": ("weights_only", True),
}
"""Calls that unpickle unless an argument has this value."""

HINT = re.compile(
    rf"{'|'.join(UNSAFE_MODULES)}|torch\.load|_state_dict|\byaml\b|(?<!\.)\b(eval|exec|__import__)\("
)
"""Found in every text with such a call; to parse them all takes too long."""

ALLOWED = {("ekya/models/weights.py", "pickle.UnpicklingError")}
"""Names of an error are no unpickling."""


def dotted(node: ast.expr) -> str:
    """Returns ``a.b.c`` of an expression of names; what it begins with otherwise is left out."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def unsafe_in(text: str, path: str) -> list[str]:
    """Returns what in a file's text could run a program that is in data, with its lines."""
    found: list[tuple[int, str]] = []
    if HINT.search(text) is None:
        return []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(module=module) if (module or "").partition(".")[0] in UNSAFE_MODULES:
                found.append((node.lineno, f"from {module}"))
            case ast.Attribute():
                name = dotted(node)
                if name.partition(".")[0] in UNSAFE_MODULES and (path, name) not in ALLOWED:
                    found.append((node.lineno, name))
                if name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"):
                    found.append((node.lineno, name))
            case ast.Call(func=ast.Name(id="eval" | "exec" | "__import__" as name)):
                found.append((node.lineno, name))
            case ast.Call(func=function, keywords=keywords):
                name = dotted(function)
                given = {one.arg: getattr(one.value, "value", None) for one in keywords}
                for call, (argument, value) in NEEDS.items():
                    if (name == call or name.endswith(f".{call}")) and given.get(argument) != value:
                        found.append((node.lineno, f"{name} without {argument}={value}"))
                if given.get("allow_pickle"):
                    found.append((node.lineno, f"{name} with allow_pickle"))
    return [f"{path}:{line}: {what}" for line, what in found]


def test_no_code_unpickles():
    found = [one for path in FILES for one in unsafe_in(path.read_text(), str(path.relative_to(ROOT)))]
    assert len(FILES) > 500
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle\npickle.loads(data)",
        "from pickle import loads",
        "import joblib\njoblib.load(path)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "weights.get_state_dict(progress=False)",
        "numpy.load(path, allow_pickle=True)",
        "yaml.load(text, Loader=yaml.Loader)",
        "eval(text)",
    ],
)
def test_audit_finds(text):
    assert unsafe_in(text, "some.py")


def test_audit_lets_safe_loading_pass():
    assert (
        unsafe_in("torch.load(path, weights_only=True)\nyaml.safe_load(text)\nmodel.eval()", "some.py") == []
    )
