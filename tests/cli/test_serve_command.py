"""``ekya serve``: which fleet and folder it serves, and how it starts itself again."""

import os
import pwd
import shutil
import subprocess
import sys
from types import ModuleType

import pytest
from commands import error_line
from typer.main import get_command

from ekya.cli import app, main
from ekya.core.errors import FullDiskError, UserError

CAM = "cam-1"


@pytest.fixture
def unit_of(monkeypatch, tmp_path, capfd):
    """Returns the lines of the unit that ``ekya serve`` prints for these arguments; None if it is refused."""

    def ask(*arguments):
        words = ["serve", *map(str, arguments), "--runs", str(tmp_path / "runs"), "--unit"]
        monkeypatch.setattr(sys, "argv", ["ekya", *words])
        return capfd.readouterr().out.splitlines() if main(words) == 0 else None

    return ask


def command_in(lines):
    return next(line for line in lines if line.startswith("ExecStart="))


@pytest.fixture
def served(tmp_path, fleet):
    """Fleet file of a service that was started before."""
    folder = tmp_path / "runs" / "small"
    folder.mkdir(parents=True)
    shutil.copy(fleet, folder / "fleet.yaml")
    return fleet


def test_serve_goes_on_although_its_fleet_file_is_gone(served, unit_of, caplog):
    served.unlink()
    assert "Description=Ekya: continuous learning for the cameras of small" in unit_of(
        served, "--name", "small"
    )
    assert f"{served}: " in caplog.text
    assert "goes on with" in caplog.text


def test_serve_goes_on_although_its_fleet_file_is_invalid(served, unit_of, caplog):
    served.write_text("streams: []\n")
    assert unit_of(served, "--name", "small") is not None
    assert "goes on with" in caplog.text


@pytest.mark.parametrize("name", [(), ("--name", "other")])
def test_serve_that_cannot_know_its_fleet_is_refused(served, unit_of, capfd, name):
    served.unlink()
    assert unit_of(served, *name) is None
    assert str(served) in error_line(capfd)


def test_serve_names_itself_to_what_starts_it_again(fleet, unit_of):
    assert f" serve --name small {fleet} " in command_in(unit_of(fleet))
    assert f" serve {fleet} --name yard " in command_in(unit_of(fleet, "--name", "yard"))


def test_unit_of_a_user_without_a_name_has_the_number(fleet, unit_of, monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert f"User={os.getuid()}" in unit_of(fleet)


def test_serve_starts_itself_without_modules_of_the_current_folder(fleet, unit_of, tmp_path):
    (tmp_path / "typer.py").write_text("raise SystemExit('the wrong typer')")
    python = command_in(unit_of(fleet)).removeprefix("ExecStart=").partition(" serve ")[0].split()
    done = subprocess.run([*python, "--version"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def options_of_command(name):
    """Returns the names of a command's options, and those that its help does not show."""
    params = get_command(app).commands[name].params
    names = {option for one in params for option in one.opts}
    return names, {option for one in params if getattr(one, "hidden", False) for option in one.opts}


def test_serve_takes_every_option_of_run_or_says_why_not(fleet, unit_of, capfd):
    of_run, of_serve = options_of_command("run")[0], options_of_command("serve")[0]
    assert of_run <= of_serve
    refused = options_of_command("serve")[1]
    assert refused == {"--windows", "--clock", "--card", "--cameras", "--resume", "--json"}
    for option in sorted(refused):
        assert unit_of(fleet, option, "3") is None
        assert error_line(capfd).startswith(f"ekya: {option}: a service ")


@pytest.mark.parametrize(("error", "code"), [(FullDiskError("no room"), 74), (UserError("no such thing"), 2)])
def test_full_disk_does_not_end_a_service_as_bad_input(fleet, tmp_path, monkeypatch, error, code):
    def serve_fleet(*_):
        raise error

    process = ModuleType("ekya.service.process")
    process.serve_fleet = serve_fleet
    monkeypatch.setitem(sys.modules, "ekya.service.process", process)
    monkeypatch.setenv("EKYA_SUPERVISOR_PID", "1")
    assert main(["serve", str(fleet), "--runs", str(tmp_path / "runs")]) == code
