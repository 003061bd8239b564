import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_mps import SHORT
from waiting import HANG_GUARD_S, wait_until

from ekya.core.errors import UserError
from ekya.gpu.mps.control import CONTROL, MpsControl, MpsError, driver_folders, find_control, is_too_long
from ekya.gpu.mps.daemon import end_daemon, find_daemon, start_daemon
from ekya.gpu.mps.folder import DaemonFolder, abandoned, choose_base, held, new_folder
from ekya.system.processes import find_process, is_own, send_signal, started_s, still_runs

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


def start_in_one_look(fake_mps, folder):
    """Starts a daemon on a clock that lets it be looked for once."""
    now_s = iter((0.0, SHORT.start_s)).__next__
    return start_daemon(fake_mps.control(folder), folder, UUID, SHORT.start_s, now_s)


def end(fake_mps, folder, limits=SHORT):
    control = replace(fake_mps.control(folder), answer_within_s=limits.answer_s)
    end_daemon(control, folder, limits)


def test_daemon_start_uses_private_folder_and_gpu_uuid(fake_mps, folder, monkeypatch):
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
    assert find_daemon(folder) == daemon


def test_daemon_end_leaves_no_process_and_no_folder(fake_mps, folder):
    start(fake_mps, folder)
    end(fake_mps, folder)
    assert fake_mps.asked()[-1] == "quit -t 1"
    assert fake_mps.running() == []
    assert not folder.root.exists()


def test_daemon_slow_start_is_waited_for(fake_mps, folder):
    fake_mps.behave(takes_s=0.3)
    assert still_runs(start(fake_mps, folder))


def test_daemon_refusal_is_quoted(fake_mps, folder):
    fake_mps.behave(refuses="An instance of this daemon is already running")
    with pytest.raises(MpsError, match=r"-d refuses \(An instance of this daemon is already running\)"):
        start(fake_mps, folder)
    end(fake_mps, folder)
    assert not folder.root.exists()


def test_daemon_never_up_is_found_and_ended(fake_mps, folder):
    fake_mps.behave(never_up=True)
    with pytest.raises(MpsError, match=r"does not come back within 5 s"):
        start(fake_mps, folder, 5.0)
    half_started = find_daemon(folder)
    assert half_started is not None
    end(fake_mps, folder)
    assert not still_runs(half_started)
    assert not folder.root.exists()


def test_daemon_with_invalid_replies_is_not_used(fake_mps, folder):
    fake_mps.behave(answers={"get_server_list": "Server: none\n"})
    with pytest.raises(MpsError, match="answers 'Server: none' to get_server_list"):
        start_in_one_look(fake_mps, folder)
    end(fake_mps, folder)
    assert fake_mps.running() == []


def test_daemon_that_dies_at_once_is_not_waited_for(fake_mps, folder):
    fake_mps.behave(lives=0)
    with pytest.raises(MpsError, match="died as soon as it was started"):
        start(fake_mps, folder)
    fake_mps.behave()
    end(fake_mps, folder)
    assert fake_mps.running() == []


def test_daemon_of_another_folder_is_not_taken_for_this_ones(fake_mps, folder):
    with new_folder(fake_mps.folders) as other:
        running = start(fake_mps, other)
        folder.pipe.joinpath(f"{CONTROL}.pid").write_text(str(running.pid))
        assert find_daemon(folder) is None
        end(fake_mps, folder)
        assert still_runs(running)
        end(fake_mps, other)


def test_process_ended_is_not_found_and_gets_no_signal(sleeper):
    found = find_process(sleeper.pid)
    assert started_s(found) > 0
    assert send_signal(found, 9)
    wait_until(lambda: not still_runs(found))
    assert find_process(sleeper.pid) is None, "a zombie does not run"
    assert sleeper.wait() == -9
    assert not send_signal(found, 9)
    assert not still_runs(found)


@pytest.mark.parametrize("ways", [{"quits": False}, {"quits": False, "stubborn": True}, {"deaf": True}])
def test_daemon_ignoring_quit_is_ended_with_its_server(fake_mps, folder, ways):
    fake_mps.behave(**{way: value for way, value in ways.items() if way == "stubborn"})
    start(fake_mps, folder)
    assert len(fake_mps.running()) == 2
    fake_mps.behave(**ways)
    end(fake_mps, folder, replace(SHORT, answer_s=0.2, force_after_s=0, kill_s=1.0))
    assert fake_mps.running() == []
    assert not folder.root.exists()


def test_daemon_end_waits_for_clients_until_timeout(fake_mps, folder, caplog):
    fake_mps.behave(clients=[os.getpid()])
    start(fake_mps, folder)
    end(fake_mps, folder, replace(SHORT, drain_s=0.4))
    assert "is ended with 1 clients" in caplog.text
    assert [line.split()[0] for line in fake_mps.asked()[-2:]] == ["get_client_list", "quit"]


def test_daemon_quit_follows_the_last_client(fake_mps, folder):
    fake_mps.behave(clients=[1])
    start(fake_mps, folder)
    ending = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from pathlib import Path; from ekya.gpu.mps.daemon import *; from ekya.gpu.mps.folder import *;"
            f"f = DaemonFolder(Path({str(folder.root)!r}));"
            f"end_daemon(MpsControl(Path({str(fake_mps.program)!r}), f.pipe), f, DaemonLimits())",
        ]
    )
    wait_until(lambda: any("get_client_list" in line for line in fake_mps.asked()))
    assert not any(line.startswith("quit") for line in fake_mps.asked())
    fake_mps.behave(clients=[])
    assert ending.wait(HANG_GUARD_S) == 0
    assert fake_mps.asked()[-1] == "quit -t 5"


def test_control_reports_faults_and_silence(fake_mps, folder):
    start(fake_mps, folder)
    control = fake_mps.control(folder)
    (server,) = control.servers()
    assert not control.has_fault(server)
    fake_mps.behave(faulty=server)
    assert control.has_fault(server)
    fake_mps.behave(deaf=True)
    with pytest.raises(MpsError, match=r"does not answer get_server_list within 0\.2 s"):
        replace(control, answer_within_s=0.2).servers()


def test_control_client_must_be_on_exactly_one_server(fake_mps, folder):
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


def test_folder_path_over_107_bytes_is_refused(fake_mps):
    def room(length):
        return DaemonFolder(
            fake_mps.folders / ("x" * (length - len(f"{fake_mps.folders}//pipe/{CONTROL}.pid")))
        )

    for length, too_long in ((107, False), (108, True)):
        folder = room(length)
        assert len(os.fsencode(folder.pipe / f"{CONTROL}.pid")) == length
        assert is_too_long(folder.pipe) is too_long
    folder = room(107)
    folder.pipe.mkdir(parents=True)
    folder.log.mkdir()
    start(fake_mps, folder)
    end(fake_mps, folder)


def test_folder_long_temporary_path_uses_the_next(fake_mps, tmp_path):
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    assert choose_base((deep, fake_mps.folders)) == fake_mps.folders
    with pytest.raises(UserError, match="set TMPDIR to a shorter folder"):
        choose_base((deep,))


def test_folder_abandoned_ones_have_no_holder(fake_mps, folder):
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
    left.remove_folder()
    with held(left) as still_there:
        assert not still_there


def test_control_program_is_found_on_path_or_beside_driver(fake_mps, tmp_path, monkeypatch):
    assert find_control() == fake_mps.program
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_control([tmp_path]) is None
    maps = tmp_path / "maps"
    library = fake_mps.programs.parent / "lib" / "libnvidia-ml.so.600.1"
    maps.write_text(f"7f00-7f01 r-xp 00000000 00:00 1   {library}\n7f02-7f03 rw-p 00000000 00:00 0\n")
    assert find_control(driver_folders(maps)) == fake_mps.program
    assert list(driver_folders(tmp_path / "none")) == []


def test_control_missing_program_raises_mps_error(tmp_path):
    with pytest.raises(MpsError, match="cannot be run"):
        MpsControl(tmp_path / CONTROL, Path("/tmp")).servers()
