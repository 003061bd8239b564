"""``ekya fleet run`` as it is typed: what is refused before anything is begun, and how."""

import pytest
import yaml

from ekya import cli
from ekya.shipped import shipped_path


@pytest.fixture
def file(tmp_path):
    fleet = str(shipped_path("datasets/synthetic_city/fleet.yaml"))
    servers = [{"site": "north", "streams": ["cam-1"]}, {"site": "south", "streams": ["cam-3"]}]
    path = tmp_path / "town.yaml"
    path.write_text(yaml.safe_dump({"fleet": fleet, "servers": servers}))
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fail", "north"], "--fail north: write SITE@SECONDS"),
        (["--fail", "north@soon"], "--fail north@soon: write SITE@SECONDS"),
        (["--fail", "west@3"], "there is no server west; they are north, south"),
        (["--tier", "nobody"], "--tier nobody: nobody of that name finds loans; choose from"),
        (["--scheduler", "cloud"], "choose another scheduler, such as ekya"),
        (["--scheduler", "bound"], "scheduler"),
        (["--windows", "0"], "--windows"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_sentence(
    words, said, file, tmp_path, monkeypatch, capfd
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["fleet", "run", str(file), "--clock", "virtual", *words]) == 2
    assert said in " ".join(capfd.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "runs").exists()


def test_its_help_has_examples(capfd) -> None:
    assert cli.main(["fleet", "run", "--help"]) == 0
    assert "ekya fleet run --clock virtual --tier none --json -" in capfd.readouterr().out
