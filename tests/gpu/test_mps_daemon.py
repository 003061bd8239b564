import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_mps import SHORT, wait_until

from ekya.gpu.mps.control import CONTROL, MpsControl, MpsError, driver_folders, find_control, is_too_long
from ekya.gpu.mps.daemon import end_daemon, find_daemon, start_daemon, trouble
from ekya.gpu.mps.folder import DaemonFolder, abandoned, held, new_folder, short_enough, why_none
from ekya.system.processes import is_own, look_at, send_signal, started_s, still_runs

UUID = "GPU-0f5e"


@pytest.fixture
def folder(fake_mps):
    with new_folder(fake_mps.folders) as folder:
        yield folder


@pytest.fixture
def sleeper():
    """A process unrelated to MPS."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def start(fake_mps, folder, within_s=SHORT.start_s):
    return start_daemon(fake_mps.control(folder), folder, UUID, within_s)


def end(fake_mps, folder, patience=SHORT):
    control = replace(fake_mps.control(folder), answer_within_s=patience.answer_s)
    end_daemon(control, folder, patience)


def test_a_daemon_runs_in_a_private_folder_for_one_gpu_by_its_uuid(fake_mps, folder, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "20")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    daemon = start(fake_mps, folder)
    assert folder.root.stat().st_mode & 0o777 == 0o700
    (call,) = fake_mps.daemons()
    assert (call["daemon"], is_own(daemon)) == (daemon.pid, True)
    assert call["environment"] == {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder.pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(folder.log),
        "CUDA_VISIBLE_DEVICES": UUID,
    }
    assert trouble(fake_mps.control(folder), daemon) is None
    assert find_daemon(folder) == daemon


def test_the_end_leaves_no_process_and_no_folder(fake_mps, folder):
    start(fake_mps, folder)
    end(fake_mps, folder)
    assert fake_mps.asked()[-1] == "quit -t 1"
    assert fake_mps.running() == []
    assert not folder.root.exists()


def test_a_slow_daemon_is_waited_for(fake_mps, folder):
    fake_mps.behave(takes_s=0.3)
    assert still_runs(start(fake_mps, folder))


def test_a_daemon_that_refuses_is_quoted(fake_mps, folder):
    fake_mps.behave(refuses="An instance of this daemon is already running")
    with pytest.raises(MpsError, match=r"-d refuses \(An instance of this daemon is already running\)"):
        start(fake_mps, folder)
    end(fake_mps, folder)
    assert not folder.root.exists()


def test_a_daemon_that_never_comes_up_is_found_and_ended(fake_mps, folder):
    fake_mps.behave(never_up=True)
    with pytest.raises(MpsError, match=r"does not come back within 2 s"):
        start(fake_mps, folder, 2.0)
    half_started = find_daemon(folder)
    assert half_started is not None
    end(fake_mps, folder)
    assert not still_runs(half_started)
    assert not folder.root.exists()


@pytest.mark.parametrize(
    ("ways", "why"),
    [
        ({"pid_file": None}, "writes no pid file"),
        ({"pid_file": "soon"}, "writes no pid file"),
        ({"answers": {"get_server_list": "Server: none\n"}}, "answers 'Server: none' to get_server_list"),
    ],
)
def test_a_daemon_that_cannot_be_told_or_understood_is_not_used(fake_mps, folder, ways, why):
    fake_mps.behave(**ways)
    with pytest.raises(MpsError, match=why):
        start(fake_mps, folder, 2.0)
    end(fake_mps, folder)
    assert fake_mps.running() == []


def test_the_process_of_a_stale_pid_file_is_neither_taken_for_the_daemon_nor_signalled(
    fake_mps, folder, sleeper
):
    fake_mps.behave(pid_file=str(sleeper.pid))
    with pytest.raises(MpsError, match=f"process {sleeper.pid} of its pid file is not a daemon"):
        start(fake_mps, folder, 2.0)
    end(fake_mps, folder)
    assert sleeper.poll() is None
    assert fake_mps.running() == []


def test_an_older_daemon_with_the_number_of_the_pid_file_is_left_alone(fake_mps, folder):
    with new_folder(fake_mps.folders) as other:
        older = start(fake_mps, other)
        time.sleep(1.1)  # Start times have a resolution of 0.01 s, and clocks may differ by a second.
        fake_mps.behave(pid_file=str(older.pid))
        with pytest.raises(MpsError, match="is not a daemon that was just started"):
            start(fake_mps, folder, 2.0)
        fake_mps.behave()
        end(fake_mps, folder)
        assert still_runs(older)


def test_a_recorded_number_that_another_process_has_by_now_is_not_the_daemon(fake_mps, folder, sleeper):
    folder.record.write_text(json.dumps({"pid": sleeper.pid, "started_s": 0.01}))
    assert find_daemon(folder) is None
    end(fake_mps, folder)
    assert sleeper.poll() is None
    assert not folder.root.exists()


def test_a_process_is_found_by_its_number_until_it_ends_and_gets_no_signal_afterwards(sleeper):
    found = look_at(sleeper.pid)
    assert 0 < started_s(found) <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert send_signal(found, 9)
    wait_until(lambda: not still_runs(found))
    assert look_at(sleeper.pid) is None, "a zombie does not run"
    assert sleeper.wait() == -9
    assert not send_signal(found, 9)
    assert not still_runs(found)


@pytest.mark.parametrize("ways", [{"quits": False}, {"quits": False, "stubborn": True}, {"deaf": True}])
def test_a_daemon_that_does_not_quit_is_ended_with_its_server(fake_mps, folder, ways):
    fake_mps.behave(**{way: value for way, value in ways.items() if way == "stubborn"})
    start(fake_mps, folder)
    assert len(fake_mps.running()) == 2
    fake_mps.behave(**ways)
    end(fake_mps, folder, replace(SHORT, answer_s=0.2, force_after_s=0, kill_s=0.2))
    assert fake_mps.running() == []
    assert not folder.root.exists()


def test_clients_are_given_time_to_end_and_then_are_not_waited_for(fake_mps, folder):
    fake_mps.behave(clients=[os.getpid()])
    start(fake_mps, folder)
    began_s = time.monotonic()
    end(fake_mps, folder, replace(SHORT, drain_s=0.4))
    assert time.monotonic() - began_s >= 0.4
    assert "quit -t 1" in fake_mps.asked()


def test_quit_comes_after_the_last_client(fake_mps, folder):
    fake_mps.behave(clients=[1])
    start(fake_mps, folder)
    ending = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from pathlib import Path; from ekya.gpu.mps.daemon import *; from ekya.gpu.mps.folder import *;"
            f"f = DaemonFolder(Path({str(folder.root)!r}));"
            f"end_daemon(MpsControl(Path({str(fake_mps.program)!r}), f.pipe), f, Patience())",
        ]
    )
    wait_until(lambda: any("get_client_list" in line for line in fake_mps.asked()))
    assert not any(line.startswith("quit") for line in fake_mps.asked())
    fake_mps.behave(clients=[])
    assert ending.wait(10) == 0
    assert fake_mps.asked()[-1] == "quit -t 5"


def test_health_names_death_silence_a_fault_and_a_second_server(fake_mps, folder):
    daemon = start(fake_mps, folder)
    control = fake_mps.control(folder)
    fake_mps.behave(status="FAULT")
    assert "was stopped by a fault of a client" in trouble(control, daemon)
    fake_mps.behave(serves=2)
    assert "has 2 servers instead of one" in trouble(control, daemon)
    fake_mps.behave(deaf=True)
    impatient = replace(control, answer_within_s=0.2)
    assert "does not answer get_server_list within 0.2 s" in trouble(impatient, daemon)
    send_signal(daemon, 9)
    wait_until(lambda: not still_runs(daemon))
    assert "has died" in trouble(control, daemon)
    assert "Cannot find MPS control daemon process" in trouble(control, None)


def test_a_client_is_on_exactly_one_server(fake_mps, folder):
    start(fake_mps, folder)
    control = fake_mps.control(folder)
    fake_mps.behave(clients=[4711])
    control.require_client(4711)
    with pytest.raises(MpsError, match="knows process 4712 on 0 of its 1 servers, not on one"):
        control.require_client(4712, 0.0)
    fake_mps.behave(clients=[4711], serves=2)
    with pytest.raises(MpsError, match="on 2 of its 2 servers"):
        control.require_client(4711, 0.0)
    fake_mps.behave(answers={"get_client_list": "4711 -1\n"})
    with pytest.raises(MpsError, match="answers '4711 -1'"):
        control.require_client(4711, 0.0)


def test_a_daemon_is_reached_at_107_bytes_and_refused_before_the_start_at_108(fake_mps):
    def room(length):
        return DaemonFolder(
            fake_mps.folders / ("x" * (length - len(f"{fake_mps.folders}//pipe/{CONTROL}.pid")))
        )

    for length, too_long in ((107, False), (108, True)):
        folder = room(length)
        assert len(os.fsencode(folder.pid_file)) == length
        assert is_too_long(folder.pipe) is too_long
    folder = room(107)
    folder.pipe.mkdir(parents=True)
    folder.log.mkdir()
    start(fake_mps, folder)
    end(fake_mps, folder)


def test_where_temporary_files_go_too_deep_the_next_folder_is_taken(fake_mps, tmp_path):
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    assert short_enough((deep, fake_mps.folders)) == fake_mps.folders
    assert short_enough((deep,)) is None
    assert "set TMPDIR to a shorter folder" in why_none((deep,))


def test_only_folders_that_nobody_holds_are_abandoned(fake_mps, folder):
    with abandoned(fake_mps.folders) as found:
        assert found == []
    with new_folder(fake_mps.folders) as left:
        pass
    (fake_mps.folders / "ekya-mps-link").symlink_to("/tmp")
    (fake_mps.folders / "ekya-mps-file").touch()
    with abandoned(fake_mps.folders) as found:
        assert found == [left]
        with abandoned(fake_mps.folders) as found_by_another:
            assert found_by_another == []
    left.remove()
    with held(left) as still_there:
        assert not still_there


def test_the_program_is_found_on_the_path_or_beside_the_drivers_library(fake_mps, tmp_path, monkeypatch):
    assert find_control() == fake_mps.program
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_control([tmp_path]) is None
    maps = tmp_path / "maps"
    library = fake_mps.programs.parent / "lib" / "libnvidia-ml.so.600.1"
    maps.write_text(f"7f00-7f01 r-xp 00000000 00:00 1   {library}\n7f02-7f03 rw-p 00000000 00:00 0\n")
    assert find_control(driver_folders(maps)) == fake_mps.program
    assert list(driver_folders(tmp_path / "none")) == []


def test_a_program_that_is_gone_is_an_error_and_not_a_crash(tmp_path):
    with pytest.raises(MpsError, match="cannot be run"):
        MpsControl(tmp_path / CONTROL, Path("/tmp")).servers()
