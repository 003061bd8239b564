import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
from fake_mps import SHORT
from waiting import HANG_GUARD_S, wait_until

from ekya.core.errors import UserError
from ekya.gpu.mps import service as service_module
from ekya.gpu.mps.control import CONTROL
from ekya.gpu.mps.service import find_mps, mps_service
from ekya.gpu.nvml import Gpu, GpuInventory
from ekya.system.processes import find_process

GPUS = tuple(Gpu(index, "a GPU", 8 << 30, 7 << 30, f"GPU-{index}f") for index in range(2))
TWO = GpuInventory(GPUS, "600.1", "2 NVIDIA GPUs")
ONE = replace(TWO, gpus=GPUS[:1])

OWNER = """
import sys, time
from pathlib import Path
from ekya.gpu.mps import service as mps_service
from ekya.gpu.mps.daemon import DaemonLimits
from ekya.gpu.nvml import Gpu
mps_service.temporary_folders = lambda: (Path(sys.argv[1]),)
found = mps_service.MpsFound(True, "told", Path(sys.argv[2]))
limits = DaemonLimits(start_s=60.0, answer_s=20.0, drain_s=1.0, force_after_s=1, kill_s=1.0)
with mps_service.mps_service(found, [Gpu(0, "a GPU", 1, 1, "GPU-0f")], limits):
    print("up", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def owner(fake_mps):
    """A separate process that has a daemon."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(fake_mps.folders), str(fake_mps.program)], stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def keeper_of(owner_pid):
    """Returns the process that keeps an owner's only daemon."""
    children = psutil.Process(owner_pid).children()
    (keeper,) = [one for one in children if "ekya.gpu.mps.keeper" in one.cmdline()]
    return keeper


def all_gone(fake_mps):
    return fake_mps.running() == [] and fake_mps.folders_left() == []


def test_service_each_gpu_has_a_daemon_during_the_run(fake_mps):
    with mps_service(find_mps(TWO), GPUS, SHORT) as environment:
        seen = [call["environment"] for call in fake_mps.daemons()]
        assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["GPU-0f", "GPU-1f"]
        clients = pickle.loads(pickle.dumps(environment)).clients
        assert len({client["CUDA_MPS_PIPE_DIRECTORY"] for client in clients}) == 2
        for client, one in zip(clients, seen, strict=True):
            assert client == {name: one[name] for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES")}
    assert all_gone(fake_mps)


def test_service_failed_start_is_a_user_error_and_cleans_up(fake_mps):
    fake_mps.behave(refuses="no permission to create the pipe")
    with (
        pytest.raises(UserError, match=r"GPU 0 has no MPS daemon: .*no permission to create the pipe"),
        mps_service(find_mps(ONE), GPUS[:1], SHORT),
    ):
        pytest.fail("the run began")
    assert all_gone(fake_mps)


def test_keeper_takes_no_modules_of_the_current_folder(fake_mps, tmp_path, monkeypatch):
    (tmp_path / "psutil.py").write_text("raise SystemExit('the wrong psutil')")
    monkeypatch.chdir(tmp_path)
    with mps_service(find_mps(ONE), GPUS[:1], SHORT):
        assert fake_mps.running()
    assert all_gone(fake_mps)


def test_service_second_start_failing_ends_the_first(fake_mps, monkeypatch):
    start, starts = service_module.start_daemon, iter([{}, {"refuses": "too many"}])

    def misbehave_later(*arguments):
        fake_mps.behave(**next(starts))
        return start(*arguments)

    monkeypatch.setattr(service_module, "start_daemon", misbehave_later)
    with (
        pytest.raises(UserError, match="GPU 1 has no MPS daemon"),
        mps_service(find_mps(TWO), GPUS, SHORT),
    ):
        pytest.fail("the run began")
    assert len(fake_mps.daemons()) == 1
    assert all_gone(fake_mps)


def test_keeper_ends_daemon_when_owner_is_killed(fake_mps, owner):
    assert len(fake_mps.running()) == 2
    owner.kill()
    wait_until(lambda: all_gone(fake_mps))
    assert fake_mps.asked()[-1] == "quit -t 5"


def test_keeper_survives_signals_to_the_whole_group(fake_mps, owner):
    keeper = keeper_of(owner.pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        keeper.send_signal(number)
    owner.terminate()
    owner.wait()
    wait_until(lambda: all_gone(fake_mps))


def test_service_next_run_ends_daemons_of_dead_owners(fake_mps, owner):
    keeper_of(owner.pid).kill()
    orphan = fake_mps.running()
    (left,) = fake_mps.folders_left()
    with mps_service(find_mps(ONE), GPUS[:1], SHORT):
        assert set(orphan) < set(fake_mps.running())  # Its owner is still alive and may have jobs on it.
    owner.kill()
    owner.wait()
    assert fake_mps.running() == orphan
    with mps_service(find_mps(ONE), GPUS[:1], SHORT):
        assert not left.root.exists()
        assert not set(orphan) & set(fake_mps.running())
    assert all_gone(fake_mps)


def test_service_owner_ends_daemon_when_keeper_died(fake_mps):
    with mps_service(find_mps(ONE), GPUS[:1], SHORT):
        keeper = keeper_of(os.getpid())
        keeper.kill()
        wait_until(lambda: find_process(keeper.pid) is None)
        assert len(fake_mps.running()) == 2
    assert all_gone(fake_mps)


@pytest.fixture
def one_daemon(fake_mps):
    """The environment of a run with one daemon that has just started."""
    limits = replace(SHORT, health_every_s=0.3)
    with mps_service(find_mps(ONE), GPUS[:1], limits) as environment:
        yield environment
    assert all_gone(fake_mps)


@pytest.fixture
def client(one_daemon):
    """A job of the run."""
    process = subprocess.Popen(["sleep", "60"], env=os.environ | one_daemon.clients[0])
    yield process
    process.kill()
    process.wait()


def kill_newest(fake_mps):
    os.kill(fake_mps.daemons()[-1]["daemon"], signal.SIGKILL)


def fault_newest(fake_mps):
    fake_mps.behave(faulty=fake_mps.daemons()[-1]["server"])


@pytest.mark.parametrize(
    ("break_newest", "why"), [(kill_newest, "died"), (fault_newest, "a fault of a client")]
)
def test_service_starts_daemon_again_in_the_same_folder(
    fake_mps, one_daemon, client, monkeypatch, caplog, break_newest, why
):
    for name, value in one_daemon.clients[0].items():
        monkeypatch.setenv(name, value)
    for times in (1, 2):
        break_newest(fake_mps)
        wait_until(lambda times=times: len(fake_mps.daemons()) == 1 + times)
        one_daemon.own_daemon.wait_up(HANG_GUARD_S)
        wait_until(lambda times=times: f"was started again ({times} of at most 2)" in caplog.text)
    assert client.wait(HANG_GUARD_S) == -signal.SIGKILL, (
        "it was on a server that the new daemon does not know"
    )
    seen = [call["environment"] for call in fake_mps.daemons()]
    assert seen == [seen[0]] * 3, "where and for which GPU stays as it was"
    assert len(fake_mps.running()) == 2, "the former daemons and their servers are gone"
    assert caplog.text.count(f"{why}, and was started again") == 2
    break_newest(fake_mps)
    wait_until(lambda: f"{why}, and is not started again any more" in caplog.text)
    assert len(fake_mps.daemons()) == 3


def test_service_failed_restarts_are_counted_and_quoted(fake_mps, one_daemon, caplog):
    fake_mps.behave(refuses="no more pipes")
    kill_newest(fake_mps)
    wait_until(lambda: "is not started again any more" in caplog.text)
    assert caplog.text.count("cannot be started again") == SHORT.max_restarts
    assert "refuses (no more pipes)" in caplog.text
    assert len(fake_mps.daemons()) == 1


def test_service_silent_daemon_is_reported_once_and_left_alone(fake_mps, caplog):
    with mps_service(find_mps(ONE), GPUS[:1], SHORT):
        asked = len(fake_mps.asked())
        fake_mps.behave(answers={"get_server_list": "Server: none"})
        wait_until(lambda: len(fake_mps.asked()) > asked + 2)
        assert caplog.text.count("jobs that start now wait") == 1
        fake_mps.behave()
    assert len(fake_mps.daemons()) == 1


def test_service_end_with_dead_daemon_leaves_nothing(fake_mps):
    with mps_service(find_mps(ONE), GPUS[:1], SHORT):
        kill_newest(fake_mps)
    assert all_gone(fake_mps)


def test_find_mps_starts_nothing_and_names_what_is_missing(fake_mps, tmp_path, monkeypatch):
    found = find_mps(ONE)
    assert (found.usable, found.program) == (True, fake_mps.program)
    assert fake_mps.calls() == []
    assert fake_mps.folders_left() == []
    no_gpu = GpuInventory((), None, "no NVIDIA driver answers")
    assert find_mps(no_gpu).why == "no NVIDIA driver answers"
    split = replace(ONE, gpus=(replace(GPUS[0], mig=True),))
    assert "GPU 0 is split by MIG" in find_mps(split).why
    fake_mps.program.unlink()
    monkeypatch.setattr("ekya.gpu.mps.control._USUAL_FOLDERS", ())
    missing = find_mps(ONE)
    assert not missing.usable
    assert f"{CONTROL} is neither on the PATH nor where drivers put it" in missing.why
    with pytest.raises(UserError, match="MPS cannot be used here"), mps_service(missing, GPUS[:1], SHORT):
        pytest.fail("the run began")
