"""Tests that the dependencies in pyproject.toml resolve everywhere, have lower bounds and are explained."""

import re
import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
PATIENCE_S = 90


def declared() -> list[Requirement]:
    """Returns the requirements of Ekya and of its extras."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [
        Requirement(one) for one in (*project["dependencies"], *(one for extra in extras for one in extra))
    ]


def compiling(uv: str, python: str, platform: str) -> subprocess.Popen[str]:
    """Starts a resolution against the package index; installs nothing, and allows only wheels."""
    command = [uv, "pip", "compile", "--quiet", "--color", "never", "--no-python-downloads"]
    command += ["--python", sys.executable, "--python-version", python, "--python-platform", platform]
    command += ["--only-binary", ":all:", "--extra", "test", str(PROJECT)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def resolutions():
    """Resolutions for all pairs of Python and platform, run in parallel: they mostly wait for the index."""
    uv = pytest.importorskip("uv").find_uv_bin()
    under_way = {pair: compiling(uv, *pair) for pair in product(PYTHONS, PLATFORMS)}
    yield under_way
    for one in under_way.values():
        one.kill()
        one.communicate()


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_dependencies_resolve_for_every_python_and_platform(resolutions, python, platform):
    resolution = resolutions[python, platform]
    try:
        pinned, said = resolution.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        pytest.skip("no package index answers in time")
    said = re.sub(r"\w+://\S+", "(address)", said)
    if resolution.returncode != 0 and "No solution found" not in said:
        pytest.skip("no package index answers")
    assert resolution.returncode == 0, said
    assert {"torch", "ray", "opencv-python-headless"} <= set(
        re.findall(r"^([\w.-]+)==", pinned, re.MULTILINE)
    )


@pytest.mark.parametrize(
    ("python", "fits"), [("3.10", False), *((one, True) for one in PYTHONS), ("3.14", False)]
)
def test_project_python_range_matches_tested_versions(python, fits):
    asked = SpecifierSet(tomllib.loads(PROJECT.read_text())["project"]["requires-python"])
    assert asked.contains(f"{python}.1") == fits
    major, minor = python.split(".")
    assert (f"({major}, {minor})" in (PROJECT.parent / "Makefile").read_text()) == fits


@pytest.mark.parametrize("requirement", declared(), ids=lambda requirement: requirement.name)
def test_dependency_has_a_lower_bound_and_is_explained(requirement):
    assert {one.operator for one in requirement.specifier} & {">=", "=="}
    page = (PROJECT.parent / "docs/architecture.md").read_text()
    table = page.partition("\n## Dependencies\n")[2].partition("\n\nBetween")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)
    named = {name.partition("[")[0] for libraries, why in rows if why for name in libraries.split(", ")}
    assert requirement.name in named
