import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
from fake_mps import SHORT, wait_until

from ekya.core.errors import UserError
from ekya.gpu.mps.control import CONTROL, MpsError
from ekya.gpu.mps.service import FOREIGN_VARIABLE, look_for_mps, mps_service
from ekya.gpu.nvml import Gpu, GpuInventory
from ekya.system.processes import look_at

GPUS = tuple(Gpu(index, "a GPU", 8 << 30, 7 << 30, f"GPU-{index}f") for index in range(2))
TWO = GpuInventory(GPUS, "600.1", "2 NVIDIA GPUs")
ONE = replace(TWO, gpus=GPUS[:1])

OWNER = """
import sys, time
from pathlib import Path
from ekya.gpu.mps import service as mps_service
from ekya.gpu.mps.daemon import Patience
from ekya.gpu.nvml import Gpu
mps_service.temporary_folders = lambda: (Path(sys.argv[1]),)
found = mps_service.MpsFound(True, "told", Path(sys.argv[2]))
patience = Patience(start_s=10.0, drain_s=1.0, force_after_s=1, kill_s=0.5)
with mps_service.mps_service(found, [Gpu(0, "a GPU", 1, 1, "GPU-0f")], patience):
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
    return fake_mps.running() == [] and fake_mps.rooms() == []


def test_each_gpu_has_a_daemon_of_its_own_for_as_long_as_the_run_lasts(fake_mps):
    with mps_service(look_for_mps(TWO), GPUS, SHORT) as environment:
        seen = [call["environment"] for call in fake_mps.daemons()]
        assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["GPU-0f", "GPU-1f"]
        assert len({room.pipe for room in environment.rooms}) == 2
        for gpu, one in enumerate(seen):
            told = pickle.loads(pickle.dumps(environment)).of(gpu)
            assert told == {name: one[name] for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES")}
    assert all_gone(fake_mps)


def test_a_process_that_cuda_left_without_mps_is_told_so(fake_mps, monkeypatch):
    with mps_service(look_for_mps(ONE), GPUS[:1], SHORT) as environment:
        for name, value in environment.of(0).items():
            monkeypatch.setenv(name, value)
        fake_mps.behave(clients=[os.getpid()])
        environment.require_client()
        fake_mps.behave(clients=[])
        with pytest.raises(MpsError, match="on 0 of its 1 servers"):
            environment.require_client(0.0)


def test_a_daemon_that_does_not_start_is_the_users_error_and_leaves_nothing(fake_mps):
    fake_mps.behave(refuses="no permission to create the pipe")
    with (
        pytest.raises(UserError, match=r"GPU 0 has no MPS daemon: .*no permission to create the pipe"),
        mps_service(look_for_mps(ONE), GPUS[:1], SHORT),
    ):
        pytest.fail("the run began")
    assert all_gone(fake_mps)


def test_the_first_daemon_is_ended_when_the_second_does_not_start(fake_mps, monkeypatch):
    starts = iter([{}, {"refuses": "too many"}])
    popen = subprocess.Popen

    def misbehave_later(*arguments, **options):
        if "-m" in arguments[0]:
            fake_mps.behave(**next(starts))
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", misbehave_later)
    with (
        pytest.raises(UserError, match="GPU 1 has no MPS daemon"),
        mps_service(look_for_mps(TWO), GPUS, SHORT),
    ):
        pytest.fail("the run began")
    assert len(fake_mps.daemons()) == 1
    assert all_gone(fake_mps)


def test_a_daemon_ends_when_its_owner_is_killed(fake_mps, owner):
    assert len(fake_mps.running()) == 2
    owner.kill()
    wait_until(lambda: all_gone(fake_mps))
    assert fake_mps.asked()[-1] == "quit -t 1"


def test_a_keeper_holds_out_when_everything_is_asked_to_end(fake_mps, owner):
    keeper = keeper_of(owner.pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        keeper.send_signal(number)
    owner.terminate()
    owner.wait()
    wait_until(lambda: all_gone(fake_mps))


def test_what_a_dead_owner_with_a_dead_keeper_left_is_ended_by_the_next_run(fake_mps, owner):
    keeper_of(owner.pid).kill()
    orphan = fake_mps.running()
    (left,) = fake_mps.rooms()
    with mps_service(look_for_mps(ONE), GPUS[:1], SHORT):
        assert set(orphan) < set(fake_mps.running())  # Its owner is still alive and may have jobs on it.
    owner.kill()
    owner.wait()
    assert fake_mps.running() == orphan
    with mps_service(look_for_mps(ONE), GPUS[:1], SHORT):
        assert not left.root.exists()
        assert not set(orphan) & set(fake_mps.running())
    assert all_gone(fake_mps)


def test_an_owner_whose_keeper_died_ends_its_daemon_itself(fake_mps):
    with mps_service(look_for_mps(ONE), GPUS[:1], SHORT):
        keeper = keeper_of(os.getpid())
        keeper.kill()
        wait_until(lambda: look_at(keeper.pid) is None)
        assert len(fake_mps.running()) == 2
    assert all_gone(fake_mps)


def test_a_daemon_that_dies_without_its_keeper_is_noticed_once(fake_mps, caplog):
    with caplog.at_level(logging.ERROR), mps_service(look_for_mps(ONE), GPUS[:1], SHORT):
        keeper_of(os.getpid()).kill()
        os.kill(fake_mps.daemons()[0]["daemon"], signal.SIGKILL)
        wait_until(lambda: "has died" in caplog.text)
        wait_until(lambda: len(fake_mps.running()) == 1)
    assert caplog.text.count("has died") == 1
    assert all_gone(fake_mps)


@pytest.fixture
def one_daemon(fake_mps):
    """The environment of a run with one daemon that has just started."""
    patience = replace(SHORT, health_every_s=0.3)
    with mps_service(look_for_mps(ONE), GPUS[:1], patience) as environment:
        yield environment
    assert all_gone(fake_mps)


@pytest.fixture
def client(one_daemon):
    """A job of the run."""
    process = subprocess.Popen(["sleep", "60"], env=os.environ | one_daemon.of(0))
    yield process
    process.kill()
    process.wait()


def kill_newest(fake_mps):
    os.kill(fake_mps.daemons()[-1]["daemon"], signal.SIGKILL)


def test_a_daemon_that_dies_is_started_again_where_jobs_look_for_it_and_its_clients_begin_again(
    fake_mps, one_daemon, client, monkeypatch, caplog
):
    for name, value in one_daemon.of(0).items():
        monkeypatch.setenv(name, value)
    for times in (1, 2):
        kill_newest(fake_mps)
        wait_until(lambda times=times: len(fake_mps.daemons()) == 1 + times)
        one_daemon.wait_for_daemon(5.0)
        wait_until(lambda times=times: f"was started again ({times} of at most 2)" in caplog.text)
    assert client.wait(5) == -signal.SIGKILL, "nobody is left on a server that the new daemon does not know"
    seen = [call["environment"] for call in fake_mps.daemons()]
    assert seen == [seen[0]] * 3, "where and for which GPU stays as it was"
    assert len(fake_mps.running()) == 2, "the dead daemons' servers are gone"
    assert caplog.text.count("died, and was started again") == 2
    fake_mps.behave(clients=[os.getpid()])
    one_daemon.require_client()


def test_a_daemon_that_dies_again_and_again_is_given_up_and_that_is_said_once(
    fake_mps, one_daemon, monkeypatch, caplog
):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", one_daemon.of(0)["CUDA_MPS_PIPE_DIRECTORY"])
    fake_mps.behave(lives=1)
    wait_until(lambda: "is not started again any more" in caplog.text, within_s=15.0)
    assert len(fake_mps.daemons()) == 1 + SHORT.starts_again
    assert caplog.text.count("is not started again any more") == 1
    with pytest.raises(MpsError):
        one_daemon.wait_for_daemon(0.0)


def test_a_daemon_that_cannot_be_started_again_is_tried_so_often_and_quoted(fake_mps, one_daemon, caplog):
    fake_mps.behave(refuses="no more pipes")
    kill_newest(fake_mps)
    wait_until(lambda: "is not started again any more" in caplog.text, within_s=15.0)
    assert caplog.text.count("cannot be started again") == SHORT.starts_again
    assert "refuses (no more pipes)" in caplog.text
    assert len(fake_mps.daemons()) == 1


def test_an_owner_that_ends_while_its_daemon_is_dead_leaves_nothing(fake_mps):
    with mps_service(look_for_mps(ONE), GPUS[:1], SHORT):
        kill_newest(fake_mps)
    assert all_gone(fake_mps)


def test_a_foreign_daemon_that_dies_is_said_and_never_started_again(fake_mps, owner, monkeypatch, caplog):
    keeper_of(owner.pid).kill()  # it would restart its daemon
    (foreign,) = fake_mps.rooms()
    monkeypatch.setenv(FOREIGN_VARIABLE, str(foreign.pipe))
    with mps_service(look_for_mps(ONE), GPUS[:1], SHORT):
        kill_newest(fake_mps)
        wait_until(lambda: "jobs that start now wait, and fail if it stays so" in caplog.text)
        time.sleep(1.0)
        assert len(fake_mps.daemons()) == 1
        assert len(fake_mps.running()) == 1, "its server is not ours to end"


def test_a_foreign_daemon_is_left_alone_unless_it_is_named(fake_mps, owner, monkeypatch):
    (foreign,) = fake_mps.rooms()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(foreign.pipe))
    found = look_for_mps(ONE)
    assert (found.usable, found.foreign) == (True, ())
    assert f"the daemon that runs at {foreign.pipe} is left alone" in found.why
    monkeypatch.setenv(FOREIGN_VARIABLE, str(foreign.pipe))
    found = look_for_mps(ONE)
    assert (found.usable, found.foreign) == (True, (foreign.pipe,))
    running = fake_mps.running()
    with mps_service(found, GPUS[:1], SHORT) as environment:
        assert environment.of(0)["CUDA_MPS_PIPE_DIRECTORY"] == str(foreign.pipe)
        assert len(fake_mps.daemons()) == 1
    assert fake_mps.running() == running
    assert not any(line.startswith("quit") for line in fake_mps.asked())


def test_a_foreign_daemon_that_does_not_answer_is_said_before_the_run(fake_mps, tmp_path, monkeypatch):
    monkeypatch.setenv(FOREIGN_VARIABLE, str(fake_mps.folders))
    found = look_for_mps(ONE)
    assert not found.usable
    assert "no daemon can be used" in found.why
    assert "Cannot find MPS control daemon process" in found.why
    assert f"{FOREIGN_VARIABLE} names 1 folders for 2 GPUs" in look_for_mps(TWO).why
    monkeypatch.setenv(FOREIGN_VARIABLE, "/tmp/" + "x" * 120)
    assert "too long for a socket of 107 bytes" in look_for_mps(ONE).why


def test_looking_starts_nothing_and_says_what_is_missing(fake_mps, tmp_path, monkeypatch):
    found = look_for_mps(ONE)
    assert (found.usable, found.program) == (True, fake_mps.program)
    assert fake_mps.calls() == []
    assert fake_mps.rooms() == []
    no_gpu = GpuInventory((), None, "no NVIDIA driver answers")
    assert look_for_mps(no_gpu).why == "no NVIDIA driver answers"
    split = replace(ONE, gpus=(replace(GPUS[0], mig=True),))
    assert "GPU 0 is split by MIG" in look_for_mps(split).why
    fake_mps.program.unlink()
    monkeypatch.setattr("ekya.gpu.mps.control._USUAL_FOLDERS", ())
    missing = look_for_mps(ONE)
    assert not missing.usable
    assert f"{CONTROL} is neither on the PATH nor where drivers put it" in missing.why
    with pytest.raises(UserError, match="MPS cannot be used here"), mps_service(missing, GPUS[:1], SHORT):
        pytest.fail("the run began")
