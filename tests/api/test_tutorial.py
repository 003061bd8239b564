"""The tutorial's notebook runs from the first cell to the last."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs/tutorial.ipynb"


def cells():
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def shown_by(text, names):
    """Executes a cell as a notebook does, and returns what it shows of its last line."""
    *statements, last = ast.parse(text).body
    if not isinstance(last, ast.Expr):
        statements.append(last)
    exec(compile(ast.Module(statements, []), "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        return ""
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


def test_notebook_holds_no_results_of_an_earlier_run():
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert [cell["outputs"] for cell in content["cells"] if cell["cell_type"] == "code"] == [[]] * len(
        cells()
    )


@pytest.mark.live
@pytest.mark.long
def test_notebook_runs_and_shows_tables_and_a_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}  # where a notebook's classes are
    shown = [shown_by(text, names) for text in cells()]
    assert "no-retrain" in shown[0]
    assert "halves" in shown[2]
    assert "cam-4" in shown[4]
    assert shown[-1].startswith("<iframe")
    assert names["run"].summary.problem is None
