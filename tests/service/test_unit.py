"""The systemd unit, which systemd itself checks."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ekya.core.errors import UserError
from ekya.service.unit import ServiceUnit

UNIT = ServiceUnit(
    name="yard",
    argv=("/bin/true", "serve", "/etc/ekya/my yard.yaml", "--name", "50% of $HOME", 'a "quoted" \\ one'),
    user="root",
    working_directory=Path("/tmp"),
    runs=Path("/tmp/my runs"),
)


def test_unit_restarts_all_but_bad_input():
    lines = UNIT.unit_text().splitlines()
    assert "Restart=always" in lines
    assert "RestartPreventExitStatus=2" in lines
    assert "Type=notify" in lines
    assert "KillMode=mixed" in lines
    assert "TimeoutStopSec=46" in lines
    assert (
        replace(UNIT, stop_s=90).unit_text().splitlines()[lines.index("TimeoutStopSec=46")]
        == "TimeoutStopSec=106"
    )


def test_unit_quotes_its_command_line():
    command = next(line for line in UNIT.unit_text().splitlines() if line.startswith("ExecStart="))
    assert command == (
        'ExecStart=/bin/true serve "/etc/ekya/my yard.yaml" --name "50%% of $$HOME" "a \\"quoted\\" \\\\ one"'
    )


def test_unit_refuses_a_line_break():
    with pytest.raises(UserError, match="a line break cannot stand in a unit"):
        replace(UNIT, user="root\nExecStartPre=/bin/rm").unit_text()


@pytest.mark.live
@pytest.mark.virtual
def test_unit_passes_the_check_of_systemd(tmp_path):
    check = shutil.which("systemd-analyze")
    if check is None:
        pytest.skip("systemd-analyze is missing; install the Debian package systemd")
    path = tmp_path / "ekya-yard.service"
    path.write_text(UNIT.unit_text())
    done = subprocess.run([check, "verify", str(path)], capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "ekya-yard" in line]
    assert (done.returncode, ours) == (0, [])
    path.write_text(UNIT.unit_text().replace("Restart=always", "Restart=perhaps"))
    done = subprocess.run([check, "verify", str(path)], capture_output=True, text=True, check=False)
    assert "Failed to parse service restart specifier" in done.stderr
