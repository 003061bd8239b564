import logging
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
from ekya.gpu.mps.control import CONTROL, MpsError
from ekya.gpu.mps.service import EXTERNAL_VARIABLE, find_mps, mps_service
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
        assert len({served.pipe for served in environment.gpus}) == 2
        for gpu, one in enumerate(seen):
            told = pickle.loads(pickle.dumps(environment)).client_environment(gpu)
            assert told == {name: one[name] for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES")}
    assert all_gone(fake_mps)


def test_environment_process_without_mps_is_detected(fake_mps, monkeypatch):
    with mps_service(find_mps(ONE), GPUS[:1], SHORT) as environment:
        for name, value in environment.client_environment(0).items():
            monkeypatch.setenv(name, value)
        fake_mps.behave(clients=[os.getpid()])
        environment.require_client()
        fake_mps.behave(clients=[])
        with pytest.raises(MpsError, match="on 0 of its 1 servers"):
            environment.require_client(0.0)


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
    starts = iter([{}, {"refuses": "too many"}])
    popen = subprocess.Popen

    def misbehave_later(*arguments, **options):
        if "-m" in arguments[0]:
            fake_mps.behave(**next(starts))
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", misbehave_later)
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
    assert fake_mps.asked()[-1] == "quit -t 1"


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


def test_service_death_without_keeper_is_logged_once(fake_mps, caplog):
    with caplog.at_level(logging.ERROR), mps_service(find_mps(ONE), GPUS[:1], SHORT):
        keeper_of(os.getpid()).kill()
        os.kill(fake_mps.daemons()[0]["daemon"], signal.SIGKILL)
        wait_until(lambda: "has died" in caplog.text)
        wait_until(lambda: len(fake_mps.running()) == 1)
    assert caplog.text.count("has died") == 1
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
    process = subprocess.Popen(["sleep", "60"], env=os.environ | one_daemon.client_environment(0))
    yield process
    process.kill()
    process.wait()


def kill_newest(fake_mps):
    os.kill(fake_mps.daemons()[-1]["daemon"], signal.SIGKILL)


def test_keeper_restarts_daemon_in_the_same_folder(fake_mps, one_daemon, client, monkeypatch, caplog):
    for name, value in one_daemon.client_environment(0).items():
        monkeypatch.setenv(name, value)
    for times in (1, 2):
        kill_newest(fake_mps)
        wait_until(lambda times=times: len(fake_mps.daemons()) == 1 + times)
        one_daemon.wait_for_daemon(HANG_GUARD_S)
        wait_until(lambda times=times: f"was started again ({times} of at most 2)" in caplog.text)
    assert client.wait(HANG_GUARD_S) == -signal.SIGKILL, (
        "it was on a server that the new daemon does not know"
    )
    seen = [call["environment"] for call in fake_mps.daemons()]
    assert seen == [seen[0]] * 3, "where and for which GPU stays as it was"
    assert len(fake_mps.running()) == 2, "the dead daemons' servers are gone"
    assert caplog.text.count("died, and was started again") == 2
    fake_mps.behave(clients=[os.getpid()])
    one_daemon.require_client()


def test_keeper_gives_up_after_the_last_restart(fake_mps, one_daemon, monkeypatch, caplog):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", one_daemon.client_environment(0)["CUDA_MPS_PIPE_DIRECTORY"])
    fake_mps.behave(lives=1)
    wait_until(lambda: "is not started again any more" in caplog.text)
    assert len(fake_mps.daemons()) == 1 + SHORT.max_restarts
    assert caplog.text.count("is not started again any more") == 1
    with pytest.raises(MpsError):
        one_daemon.wait_for_daemon(0.0)


def test_keeper_failed_restarts_are_counted_and_quoted(fake_mps, one_daemon, caplog):
    fake_mps.behave(refuses="no more pipes")
    kill_newest(fake_mps)
    wait_until(lambda: "is not started again any more" in caplog.text)
    assert caplog.text.count("cannot be started again") == SHORT.max_restarts
    assert "refuses (no more pipes)" in caplog.text
    assert len(fake_mps.daemons()) == 1


def test_service_end_with_dead_daemon_leaves_nothing(fake_mps):
    with mps_service(find_mps(ONE), GPUS[:1], SHORT):
        kill_newest(fake_mps)
    assert all_gone(fake_mps)


def test_service_external_daemon_is_never_restarted(fake_mps, owner, monkeypatch, caplog):
    keeper_of(owner.pid).kill()  # it would restart its daemon
    (external,) = fake_mps.folders_left()
    monkeypatch.setenv(EXTERNAL_VARIABLE, str(external.pipe))
    with mps_service(find_mps(ONE), GPUS[:1], SHORT):
        kill_newest(fake_mps)
        wait_until(lambda: "jobs that start now wait, and fail if it stays so" in caplog.text)
    assert len(fake_mps.daemons()) == 1
    assert len(fake_mps.running()) == 1, "its server is not ours to end"


def test_service_external_daemon_is_used_only_if_named(fake_mps, owner, monkeypatch):
    (external,) = fake_mps.folders_left()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(external.pipe))
    found = find_mps(ONE)
    assert (found.usable, found.external) == (True, ())
    assert f"the daemon that runs at {external.pipe} is left alone" in found.why
    monkeypatch.setenv(EXTERNAL_VARIABLE, str(external.pipe))
    found = find_mps(ONE)
    assert (found.usable, found.external) == (True, (external.pipe,))
    running = fake_mps.running()
    with mps_service(found, GPUS[:1], SHORT) as environment:
        assert environment.client_environment(0)["CUDA_MPS_PIPE_DIRECTORY"] == str(external.pipe)
        assert len(fake_mps.daemons()) == 1
    assert fake_mps.running() == running
    assert not any(line.startswith("quit") for line in fake_mps.asked())


def test_service_external_daemon_without_reply_is_refused(fake_mps, tmp_path, monkeypatch):
    monkeypatch.setenv(EXTERNAL_VARIABLE, str(fake_mps.folders))
    found = find_mps(ONE)
    assert not found.usable
    assert "no daemon can be used" in found.why
    assert "Cannot find MPS control daemon process" in found.why
    assert f"{EXTERNAL_VARIABLE} names 1 folders for 2 GPUs" in find_mps(TWO).why
    monkeypatch.setenv(EXTERNAL_VARIABLE, "/tmp/" + "x" * 120)
    assert "too long for a socket of 107 bytes" in find_mps(ONE).why


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
