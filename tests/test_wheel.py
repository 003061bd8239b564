"""Tests of the wheel: its files, the dependencies that it declares, and a run of it outside the checkout."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

CHECKOUT = Path(__file__).parents[1]
PACKAGE = CHECKOUT / "ekya"
SHIPPED = ("golden_models", "datasets")
BROUGHT_ALONG = {"pydantic_core"}
"""Modules that pydantic brings in a package of its own, from which its documentation says to import."""

BUILT_WITHIN_S = 90
WINDOWS = 3


@pytest.fixture(scope="module")
def uv():
    """Path of uv, which builds and installs a wheel in a second or two."""
    return pytest.importorskip("uv").find_uv_bin()


@pytest.fixture(scope="module")
def wheel(uv, tmp_path_factory):
    """The wheel of this checkout; skips the test where no package index has its build backend."""
    folder = tmp_path_factory.mktemp("dist")
    command = [uv, "build", "--wheel", "--quiet", "--no-python-downloads", "--python", sys.executable]
    try:
        built = subprocess.run(
            [*command, "--out-dir", str(folder), str(CHECKOUT)],
            capture_output=True,
            text=True,
            timeout=BUILT_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip("no package index answers in time")
    said = re.sub(r"\w+://\S+", "(address)", built.stderr)
    if "Failed to fetch" in said or "error sending request" in said:
        pytest.skip("no package index answers")
    assert built.returncode == 0, said
    (found,) = folder.glob("*.whl")
    return found


def files_below(folder):
    """Returns the paths of all files below a folder, relative to it, without compiled modules."""
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in paths}


def test_wheel_holds_every_file_of_package_and_every_shipped_file(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = {f"ekya/{name}" for name in files_below(PACKAGE)}
    shipped = {
        f"ekya/_shipped/{folder}/{name}" for folder in SHIPPED for name in files_below(CHECKOUT / folder)
    }
    assert sorted(names ^ (package | shipped)) == []
    suffixes = {Path(name).suffix or Path(name).name for name in package - {"ekya/py.typed"}}
    assert {".j2", ".proto", ".json", ".txt"} <= suffixes
    assert {"ekya/py.typed", "ekya/_shipped/datasets/synthetic_city/fleet.yaml"} <= names


def test_dependencies_are_the_imported_libraries():
    statement = re.compile(r"^ *(?:import (\w+)[\w.]*(?: as \w+)?|from (\w+)[\w.]* import .*)$", re.MULTILINE)
    found = (found for path in PACKAGE.rglob("*.py") for found in statement.finditer(path.read_text()))
    imported = {one[1] or one[2] for one in found} - set(sys.stdlib_module_names) - {"ekya"} - BROUGHT_ALONG
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    testing = project["optional-dependencies"]["testing"]
    declared = [Requirement(line).name for line in (*project["dependencies"], *testing)]
    provided = {name: set(re.findall(r"(?m)^(\w+)[/.]", record_of(name))) for name in declared}
    assert sorted(imported - set().union(*provided.values())) == [], "each needs a dependency"
    assert [name for name in declared if not provided[name] & imported] == [], "nothing imports them"


def record_of(name):
    """Returns the list of a distribution's files."""
    return distribution(name).read_text("RECORD")


@pytest.fixture
def installed(uv, wheel, tmp_path):
    """Folder of the commands of an environment that has the wheel, the libraries, and not the checkout.

    The libraries are those of the tests. They come from a path in a ``.pth`` file, so the ``.pth`` files
    beside them, one of which leads to the checkout, are not read.
    """
    home = tmp_path / "environment"
    venv.create(home)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [uv, "pip", "install", "--quiet", "--offline", "--no-deps"]
    subprocess.run([*install, "--python", str(home / "bin" / "python"), str(wheel)], check=True)
    return home / "bin"


@pytest.mark.live
@pytest.mark.long
def test_wheel_installed_runs_outside_checkout(installed, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(command, *arguments):
        return subprocess.run(
            [installed / command, *arguments],
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    where = call("python", "-c", "import ekya, sys; print(ekya.__file__, sys.path)").stdout
    assert where.startswith(str(installed.parent))
    assert str(CHECKOUT) not in [entry.strip(" '[]\n") for entry in where.split(",")]
    for arguments in (["--help"], ["compare", "--help"], ["doctor"]):
        done = call("ekya", *arguments)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr

    done = call("ekya", "run", "--windows", str(WINDOWS), "--no-dashboard")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    folder = elsewhere / "runs" / "synthetic-city"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["frames"]["lost"] == 0
    assert {len(stream["windows"]) for stream in summary["streams"].values()} == {WINDOWS}
    assert summary["health"]["judged"] > 0
    assert any(window["retrained"] for one in summary["streams"].values() for window in one["windows"])
    assert sum(stream["gain"] for stream in summary["streams"].values()) > 0
    assert (folder / "report.html").stat().st_size > 1000
    assert (folder / "figures" / "timeline.png").is_file()
