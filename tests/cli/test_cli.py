"""The command line as a whole: errors, help, version, and options that are the fields of a config."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from commands import error_line

from ekya import __version__, cli
from ekya.cli.command import command, open_output
from ekya.cli.options import Windows, read_failing, split_files, split_names
from ekya.core.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rnu"], "No such command"),
        (["run", "--fleet"], "No such option"),
        (["run", "--seed", "x"], "--seed"),
        (["run", "--clock", "moon"], "'moon' is not one of 'wall', 'virtual'"),
        (["run", "--windows", "0"], "--windows"),
        (["run", "a.yaml", "b.yaml"], "unexpected extra argument"),
        (["run", "--gpus", "1", "--gpus", "2"], "--gpus: it stands there twice; keep one of them"),
        (["run", "--classes", "person", "--classes", "car"], "--classes: it stands there twice"),
        (["run", "--dashboard", "--no-dashboard"], "--dashboard: it stands there twice"),
        (["run", "--classes", "person,person"], "classes: a value stands there twice"),
        (["run", "none.yaml"], "none.yaml: there is no such file; check the path"),
        (["run", "--schedulers", "magic"], "ekya: --schedulers: there is no 'magic'; choose one of"),
        (["compare", "--scheduler=magic"], "ekya: --scheduler: there is no 'magic'; choose one of"),
        (["simulate", "--generate", "1", "--schedulers", "magic"], "--schedulers: there is no 'magic'"),
        (["run", "--scheduler", "ekya", "--schedulers", "thief"], "--scheduler: it stands there twice"),
        (["run", "--scheduler", "magic"], "--scheduler: there is no 'magic'; choose one of"),
        (["run", "--scheduler", "uniform:inference=2000"], "choose 0 to 1000"),
        (["run", "--video", "caf\udce9.mp4"], "caf\\xe9.mp4: the name is not UTF-8; rename it"),
        (["run", "--video", "a.mp4"], "ekya: --video a.mp4: there is no such file; check the path"),
        (["models", "fetch", "yolo"], "yolo: no model of the catalogue is called so; use one of fastestdet"),
        (
            ["run", "--camera", "rtsp://u:tops3cret@cam/", "--golden", "a.onnx"],
            "--camera: every user of this machine can see a password",
        ),
        (["run", "--video", "rtsp://u:tops3cret@cam/", "--golden", "a.onnx"], "--video: it names files"),
        (["run", "--golden", "a.onnx"], "--golden: it goes with --video"),
        (
            ["run", "--golden-layout", "xywh"],
            "--golden-layout: it goes with --video and --camera; name one, or set golden.layout:",
        ),
        (
            ["run", "--student", "a.onnx"],
            "--student: it goes with --video and --camera; name one, or set edge:",
        ),
        (
            ["run", "--task", "detect"],
            "--task: it goes with --video and --camera; name one, or set edge:",
        ),
        (
            ["run", "--video", "a.mp4", "--golden", "a.onnx", "--student", "a.onnx", "--task", "classify"],
            "--student: it is a detector, and the task is classify; leave one of the two out",
        ),
        (
            ["compare", "--video", "a.mp4", "--golden", "a.onnx", "--student", "yolo=a.onnx"],
            "--student yolo=a.onnx: no student is called 'yolo'; use one of fastestdet, ",
        ),
        (
            ["record", "--out", "a", "--camera", "/dev/video9", "--golden", "a.onnx", "--student", "y=b"],
            "--student y=b: no student is called 'y'",
        ),
        (
            ["run", "f.yaml", "--video", "a.mp4"],
            "--video: f.yaml names the cameras already; use one of the two",
        ),
        (["run", "--resume", "none"], "this is not a run folder"),
        (["run", "--resume", "none", "--gpus", "2"], "--resume: a run goes on with the fleet"),
        (["run", "--json", "none/out.json"], "--json none/out.json: there is no folder none"),
        (["run", "--json", "."], "--json .: this is a folder; name a file in it"),
        (["calibrate"], "Missing option '--out'"),
        (["compare", "--schedulers", "thief,oracle"], "oracle has to know what a retraining will give"),
    ],
)
def test_cli_with_a_user_error_prints_one_line_and_exits_with_2(
    arguments, says, capfd, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    assert says in error_line(capfd)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "--help"], "Exit code 3"),
        (["replay", "--help"], "Exit code 3"),
        (["fleet"], "simulate"),
        (["fleet", "run", "--help"], "ekya fleet run --clock virtual --tier none --json -"),
    ],
)
def test_help_names_exit_codes_and_examples(words, says, capfd):
    assert cli.main(words) == 0
    assert says in capfd.readouterr().out


def test_output_in_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="no permission"), open_output(str(tmp_path / "out.json")):
        pytest.fail("the work began")


def test_help_of_run_imports_no_engine():
    code = (
        "import sys; from ekya import cli; cli.main(['run', '--help']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'ray', 'cv2', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Examples" in done.stdout


def test_version_and_help_are_printed_on_standard_output(capfd):
    assert cli.main(["--version"]) == 0
    assert capfd.readouterr().out == f"ekya {__version__}\n"
    assert cli.main([]) == 0
    assert "compare" in capfd.readouterr().out


def test_python_m_ekya_is_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "ekya", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"ekya {__version__}\n"


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


def test_names_are_read_from_a_list():
    assert split_names("a,,b") == ("a", "b")
    assert split_names(None) == ()


def test_a_comma_in_a_file_name_is_one_if_there_is_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert split_files("a,b.mp4") == (Path("a"), Path("b.mp4"))
    Path("a,b.mp4").touch()
    assert split_files("a,b.mp4") == (Path("a,b.mp4"),)


def test_text_that_a_terminal_cannot_show_is_escaped():
    variables = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "ekya", "schema"], capture_output=True, env=variables, check=True
    )
    assert b"\\u03bb in which the golden detector" in done.stdout


S = 1_000_000


def test_fail_has_names_and_times():
    assert read_failing(["a@5", "b@x@7.5", "a@0"]) == (("a", 5 * S), ("b@x", 7_500_000), ("a", 0))


@pytest.mark.parametrize("wrong", ["a", "@5", "a@", "a@5:6", "a@x", "a@-1", "a@nan", "a@inf"])
def test_fail_of_another_form_is_refused(wrong):
    with pytest.raises(UserError, match=rf"--fail {wrong}: write SITE@SECONDS$"):
        read_failing([wrong])
