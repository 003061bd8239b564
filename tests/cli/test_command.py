"""Tests of commands, whose options are the fields of a config, and of ``--fail`` of the fleet commands."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from ekya.cli.command import command
from ekya.cli.options import Failing, Windows, read_failing, refuse_repeats, split_names
from ekya.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class TraceConfig:
    """Options of the command of these tests."""

    file: Annotated[str, typer.Argument(help="A file.")]
    windows: Windows = None
    deep: Annotated[bool, typer.Option("--deep")] = False


@pytest.fixture
def parsed():
    """Command line of one command, and the configs that it was run with."""
    configs = []

    @command(TraceConfig, "ekya trace a.parquet")
    def trace(config, _output):
        """Trace a file."""
        configs.append(config)

    @command(TraceConfig, "ekya other a.parquet")
    def other(config, _output):
        """Do something else."""

    app = typer.Typer(add_completion=False)
    trace.add_to(app)
    other.add_to(app)
    return app, configs


def test_command_parses_its_options_into_the_config(parsed):
    app, configs = parsed
    app(["trace", "a.parquet", "--windows", "3"], standalone_mode=False)
    app(["trace", "b.parquet", "--deep"], standalone_mode=False)
    assert configs == [TraceConfig(file="a.parquet", windows=3), TraceConfig(file="b.parquet", deep=True)]


def test_command_help_has_docstring_and_examples(parsed, capsys):
    app, configs = parsed
    app(["trace", "--help"], standalone_mode=False)
    out = capsys.readouterr().out
    assert "Trace a file." in out
    assert "ekya trace a.parquet" in out
    assert configs == []


def test_names_and_distinct_read_lists():
    assert split_names("a,,b") == ("a", "b")
    assert split_names(None) == ()
    refuse_repeats("--seeds", (1, 2))
    with pytest.raises(UserError, match="--seeds: the same one stands there twice"):
        refuse_repeats("--seeds", (1, 1))


S = 1_000_000


def test_fail_has_names_and_times():
    words = ["a@5", "b@x@7.5:8"]
    assert read_failing(words, "NODE", returns=True) == (
        Failing("a", 5 * S, None),
        Failing("b@x", 7_500_000, 8 * S),
    )
    assert read_failing(["a@0"], "SITE", returns=False) == (Failing("a", 0, None),)


@pytest.mark.parametrize(
    "wrong",
    ["a", "@5", "a@", "a@5:4", "a@5:5", "a@x", "a@1:2:3", "a@-1", "a@nan", "a@inf", "a@1:inf", "a@1:nan"],
)
@pytest.mark.parametrize("returns", [True, False])
def test_fail_of_another_form_is_refused(wrong, returns):
    with pytest.raises(UserError, match=rf"--fail {wrong}: write NODE@SECONDS"):
        read_failing([wrong], "NODE", returns)


def test_fail_that_ends_is_refused_where_nobody_returns():
    with pytest.raises(UserError, match=r"--fail a@1:2: write SITE@SECONDS$"):
        read_failing(["a@1:2"], "SITE", returns=False)
