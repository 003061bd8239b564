"""The container: what its files promise, and its RUN lines in a fresh environment."""

import os
import re
import shutil
import subprocess
import tomllib
import venv
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from typer.testing import CliRunner

from ekya.cli import app
from ekya.config.fleet_sections import HttpConfig

CHECKOUT = Path(__file__).parents[1]
LINES = (CHECKOUT / "Containerfile").read_text().splitlines()
COMPOSE = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())["services"]["ekya"]
INSTALLED_WITHIN_S = 1800


def arguments_of(word):
    return [line.removeprefix(word).strip() for line in LINES if line.startswith(f"{word} ")]


def test_python_and_port_are_those_of_the_project():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    (base,) = arguments_of("ARG")
    version = re.search(r"python:(\d+\.\d+)", base)[1]
    assert f"{version}.0" in SpecifierSet(project["requires-python"])
    assert arguments_of("EXPOSE") == [str(HttpConfig().port)]
    assert COMPOSE["ports"] == [f"127.0.0.1:{HttpConfig().port}:{HttpConfig().port}"]


def test_command_of_the_compose_file_is_one_of_ekya():
    command, fleet, option, seconds = COMPOSE["command"]
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    assert option in shown
    assert fleet == "cameras.yaml"
    grace_s = int(COMPOSE["stop_grace_period"].removesuffix("s"))
    assert int(seconds) < grace_s, "the service ends before it is killed"


@pytest.mark.long
@pytest.mark.timeout(INSTALLED_WITHIN_S)
def test_run_lines_make_an_ekya_that_works(tmp_path):
    source, home, python = tmp_path / "source", tmp_path / "home", tmp_path / "python"
    ignored = [line for line in (CHECKOUT / ".dockerignore").read_text().split() if "/" not in line]
    shutil.copytree(CHECKOUT, source, ignore=shutil.ignore_patterns(*ignored))
    venv.create(python, with_pip=True)
    surroundings = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        **dict(pair.split("=") for pair in arguments_of("ENV")[0].split()),
        "PATH": f"{python / 'bin'}:{os.environ['PATH']}",
        "HOME": str(home),
    }
    for line in arguments_of("RUN"):
        here = line.replace("/tmp/ekya", str(source)).replace("/srv/ekya", str(home))
        if os.getuid() != 0:
            here = here.split(" && chown")[0]
        done = subprocess.run(
            ["sh", "-c", here], env=surroundings, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
    assert not source.exists()
    doctor = subprocess.run(
        [python / "bin/ekya", "doctor"],
        env=surroundings,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
