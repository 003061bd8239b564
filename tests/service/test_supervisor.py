"""A supervisor over real processes (killed, hanging, orphans, refusing to end), and its systemd unit."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from supervised_process import Supervised, is_alive
from waiting import HANG_GUARD_S, wait_until

from ekya.core.errors import UserError
from ekya.service.leftovers import ray_folder
from ekya.service.unit import ServiceUnit

pytestmark = [pytest.mark.live, pytest.mark.virtual]

ORPHAN = """
code = "import os, signal, time; os.fork() and os._exit(0); os.setsid(); " \\
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); " \\
    "open({path!r}, 'w').write(str(os.getpid())); time.sleep(600)"
orphan = folder / "orphan"
if orphan.exists():
    status = Path("/proc", orphan.read_text(), "status")
    alive = status.exists() and "zombie" not in status.read_text()
    say("orphan-at-restart", "alive" if alive else "gone")
else:
    subprocess.run([sys.executable, "-c", code.format(path=str(orphan))])
    while not orphan.exists() or not orphan.read_text():
        time.sleep(0.01)
    say("orphan-made")
"""
"""Begins a process in a session of its own whose parent is dead, and which ignores SIGTERM."""


@pytest.fixture
def supervised(tmp_path):
    """``supervised(body, **patience)`` starts a supervisor over a service with this body."""
    made = []

    def start(body="serve()", **options):
        made.append(Supervised(tmp_path, body, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_supervisor_starts_a_killed_service_again_and_counts_it(supervised):
    service = supervised()
    first = service.pid(1)
    os.kill(first, signal.SIGKILL)
    second = service.pid(2)
    assert second != first
    assert service.restarts()["count"] == 1
    assert service.restarts()["last_reason"] == "was killed by SIGKILL"
    assert service.restarts()["last_unix_s"] >= (service.said / "started-1").stat().st_mtime
    assert service.stop() == 0
    assert not is_alive(second)


def test_service_that_asks_for_it_is_started_again_at_once_and_not_counted(supervised):
    service = supervised("heartbeat(); sys.exit(75) if starts == 1 else serve()", delay_s=600.0)
    service.pid(2)
    assert not (service.folder / "restarts.json").exists()
    assert service.stop() == 0


def test_supervisor_kills_a_stopped_service_and_starts_it_again(supervised):
    service = supervised(silent_s=3.0)
    service.said_text("serving-1")
    os.kill(service.pid(1), signal.SIGSTOP)
    service.pid(2)
    assert service.restarts()["last_reason"] == "gave no sign of life for 3 s"
    assert service.stop() == 0


def test_supervisor_kills_a_service_that_never_becomes_ready(supervised):
    service = supervised("time.sleep(600) if starts == 1 else serve()", start_s=3.0)
    service.pid(2)
    assert service.restarts()["last_reason"] == "was not ready after 3 s"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_supervisor_lets_a_service_end_in_order(supervised, number):
    service = supervised()
    pid = service.pid(1)
    assert service.stop(number) == 0
    assert service.said_text("stopped") == "SIGTERM"
    assert not is_alive(pid)
    assert not (service.folder / "restarts.json").exists()


@pytest.mark.parametrize("ignored", [signal.SIGHUP, signal.SIGINT])
def test_supervisor_started_to_ignore_a_signal_has_its_service_hear_it(supervised, ignored):
    service = supervised("say('ignores', at_start)\nserve()", ignored=(ignored,))
    assert service.said_text("ignores") == "[]"
    os.kill(service.pid(1), ignored)
    assert service.said_text("stopped") == ignored.name
    assert service.ends() == 0


def test_supervisor_under_nohup_outlives_its_terminal(supervised):
    service = supervised(ignored=(signal.SIGHUP,))
    service.said_text("serving-1")
    service.process.send_signal(signal.SIGHUP)
    service.process.send_signal(signal.SIGHUP)
    os.kill(service.pid(1), signal.SIGKILL)
    service.said_text("serving-2")  # one that was to stop would have ended instead
    assert service.stop() == 0


def test_supervisor_in_the_background_of_a_script_hears_sigint(supervised):
    service = supervised(ignored=(signal.SIGINT,))
    service.pid(1)
    assert service.stop(signal.SIGINT) == 0
    assert service.said_text("stopped") == "SIGTERM"


def test_supervisor_kills_a_service_that_does_not_end(supervised):
    service = supervised("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('deaf')\nserve()", stop_s=0.5)
    service.said_text("deaf")
    assert service.stop() == 1
    assert not is_alive(service.pid(1))


def test_supervisor_kills_at_once_when_asked_again(supervised):
    service = supervised("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('deaf')\nserve()", stop_s=600.0)
    service.said_text("deaf")

    def is_dead():
        service.process.terminate()  # at first it is not taken for another wish
        return not is_alive(service.pid(1))

    wait_until(is_dead)
    assert service.ends() == 1


def test_supervisor_ends_orphans_before_the_next_start(supervised):
    service = supervised(f"{ORPHAN}\nserve()")
    service.said_text("orphan-made")
    orphan = int(service.said_text("orphan"))
    assert psutil.Process(orphan).ppid() == service.process.pid
    os.kill(service.pid(1), signal.SIGKILL)
    assert service.said_text("orphan-at-restart") == "gone"
    assert service.stop() == 0


def test_supervisor_leaves_no_orphan_when_it_stops(supervised):
    service = supervised(f"{ORPHAN}\nserve()")
    service.said_text("orphan-made")
    assert service.stop() == 0
    assert not is_alive(int(service.said_text("orphan")))


def test_supervisor_takes_dead_orphans_away(supervised):
    service = supervised(
        "subprocess.run([sys.executable, '-c', 'import os; os.fork() or os._exit(0)'])\nsay('made')\nserve()"
    )
    service.said_text("made")

    def none_is_a_zombie():
        return [one.status() for one in psutil.Process(service.process.pid).children()].count("zombie") == 0

    wait_until(none_is_a_zombie, lambda: "a zombie is left")


def test_supervisor_dies_and_the_service_ends_and_the_next_one_clears_up(supervised):
    service = supervised(f"{ORPHAN}\nserve()")
    service.said_text("orphan-made")
    orphan, first = int(service.said_text("orphan")), service.pid(1)
    service.process.kill()
    service.process.wait()
    service.said_text("stopped")
    wait_until(lambda: not is_alive(first), lambda: "the service outlives its supervisor")
    assert is_alive(orphan)
    service.process = service.start()
    assert service.said_text("orphan-at-restart") == "gone"
    assert "1 processes of an earlier start were ended" in service.log
    assert service.stop() == 0


def test_supervisor_gives_up_on_bad_input_and_leaves_no_folder(supervised):
    service = supervised("sys.exit(2)")
    assert service.ends() == 2
    assert not (service.said / "started-2").exists()
    assert not service.folder.exists()


def test_supervisor_does_not_give_up_on_a_service_that_was_ready(supervised):
    service = supervised("heartbeat()\nsys.exit(2) if starts == 1 else serve()")
    service.pid(2)
    assert service.restarts()["last_reason"] == "ended with exit code 2"


def test_supervisor_ends_with_a_service_that_ends_in_order(supervised):
    service = supervised("sys.exit(0)")
    assert service.ends() == 0
    assert not (service.said / "started-2").exists()


def test_supervisor_waits_longer_from_death_to_death(supervised):
    service = supervised("heartbeat()\nsys.exit(1)", healthy_s=600.0)
    service.pid(6)
    waits = [line.rpartition("in ")[2] for line in service.log.splitlines() if "again in" in line]
    assert waits[:5] == ["0.05 s", "0.1 s", "0.2 s", "0.4 s", "0.4 s"]
    service.stop()


def test_supervisor_stops_when_its_service_dies_at_the_same_moment(supervised):
    service = supervised()
    pid = service.pid(1)
    service.process.send_signal(signal.SIGSTOP)  # so that both signals are read at once
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, lambda: "it does not die")
    service.process.send_signal(signal.SIGTERM)
    service.process.send_signal(signal.SIGCONT)
    assert service.ends() == 0
    assert "again in" not in service.log


def test_supervisor_forgets_deaths_after_a_time_of_health(supervised):
    service = supervised("sys.exit(1) if starts < 3 else None\nheartbeat()\nsys.exit(1)", healthy_s=0.0)
    service.pid(4)
    waits = [line.rpartition("in ")[2] for line in service.log.splitlines() if "again in" in line]
    assert waits[:3] == ["0.05 s", "0.1 s", "0.05 s"]


def test_supervisor_is_alone_in_its_folder(supervised, tmp_path):
    service = supervised()
    service.pid(1)
    second = service.start()
    assert second.wait(HANG_GUARD_S) == 9
    assert f"process {service.process.pid} uses this folder" in service.log
    assert is_alive(service.pid(1))


def test_supervisor_gives_ray_a_folder_and_removes_it(supervised):
    body = "place = Path(os.environ['RAY_TMPDIR'])\n(place / 'ray').mkdir()\nsay('place', place)\nserve()"
    service = supervised(body)
    place = service.said_text("place")
    assert place == str(ray_folder(service.folder, service.ray))
    os.kill(service.pid(1), signal.SIGKILL)
    service.pid(2)  # it could not make its folder again if that were left
    assert service.stop() == 0
    assert list(service.ray.iterdir()) == []


def test_supervisor_tells_systemd_and_the_service_does_not(supervised, tmp_path):
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(HANG_GUARD_S)
        service = supervised(
            "say('sees', os.environ.get('NOTIFY_SOCKET'))\nserve()",
            environment={"NOTIFY_SOCKET": str(address)},
            silent_s=1.0,
        )
        assert systemd.recv(100) == b"WATCHDOG=1"
        told = systemd.recv(100)
        while told == b"WATCHDOG=1":
            told = systemd.recv(100)
        assert told.splitlines()[0] == b"READY=1"
        assert service.said_text("sees") == "None"
        service.process.terminate()
        while told != b"STOPPING=1":
            told = systemd.recv(100)
        assert service.ends() == 0


def test_supervisor_imports_no_engine():
    code = (
        "import sys, ekya.service.supervisor, ekya.service.supervised\n"
        "print([name for name in ('ray', 'torch', 'numpy', 'pydantic', 'cv2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
