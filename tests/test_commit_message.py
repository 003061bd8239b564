"""The check of commit messages."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "commit_message.py"
WHY = "\n\nTwo tests waited for each other."


@pytest.fixture(scope="module")
def problems():
    spec = importlib.util.spec_from_file_location("commit_message", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.problems


@pytest.mark.parametrize(
    "subject",
    [
        "Add a check of commit messages",
        "Embed the licence",
        "Speed up the thief",
        "Merge branch 'main'",
        "A" * 72,
    ],
)
def test_commit_message_good_has_no_problem(problems, subject) -> None:
    assert problems(subject + WHY) == []


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("", "subject is missing"),
        ("# only a comment", "subject is missing"),
        ("A" * 73 + WHY, "73 characters"),
        ("add a check" + WHY, "small letter"),
        ("Added a check" + WHY, "not an imperative"),
        ("Adding a check" + WHY, "not an imperative"),
        ("Add a check." + WHY, "full stop"),
        ("Add a check\nbecause" + WHY, "second line"),
        ("Add a check", "body is missing"),
        ("Add a check\n\n# a comment of git's\n", "body is missing"),
    ],
)
def test_commit_message_bad_names_its_problem(problems, message, problem) -> None:
    (found,) = problems(message)
    assert problem in found
