"""Keeps a service process alive: starts it, watches it, and starts it again when it dies.

The supervisor imports little, does little and holds little, so that it is not what dies. It also
tells systemd how the service is (``sd_notify``).
"""

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ekya.core.errors import UserError
from ekya.service.leftovers import FOLDER, end_leftovers, ray_folder, remove_ray_folder
from ekya.service.supervised import AGAIN, HEARTBEAT_FD, SUPERVISOR_PID, count_restart
from ekya.system.files import LOCK, hold_folder, user_errors
from ekya.system.processes import adopt_orphans

_LOG = logging.getLogger(__name__)

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables of systemd that are meant for one process, and not for its children."""

_LONGEST_S = 1.0


class Notifier:
    """Sends states to systemd; without it, nothing is sent.

    Args:
        environment: in which systemd names its socket.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # An abstract socket begins with a zero byte, which no variable can hold.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def __call__(self, *states: str) -> None:
        """Sends states, such as ``READY=1``. A supervisor outlives a systemd that does not listen."""
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_LONGEST_S)
                sender.connect(self._address)
                sender.sendall("\n".join(states).encode())


BAD_INPUT = 2
"""Exit code of a process whose input a user must mend: another start would end the same way."""

KILLED = 1
"""Exit code if the service did not end in order when it was to stop: it was killed, or failed."""

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_OVERSLEPT_S = 5.0
_AGAIN_S = 1.0
"""A terminal that closes sends more than one signal at once, which is no wish to kill."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits of a supervisor, in seconds.

    Attributes:
        stop_s: from SIGTERM to SIGKILL of a service that is to stop.
        silent_s: without a sign of life of a service that was ready, after which it is killed.
        start_s: for a service to become ready.
        leftover_s: from SIGTERM to SIGKILL of what a dead service left.
        delay_s: before a restart; each further one doubles it.
        longest_delay_s: bound of that.
        healthy_s: of service, after which the delay begins anew.
    """

    stop_s: float = 30.0
    silent_s: float = 60.0
    start_s: float = 900.0
    leftover_s: float = 1.0
    delay_s: float = 0.1
    longest_delay_s: float = 30.0
    healthy_s: float = 60.0


def supervise_service(argv: Sequence[str], folder: Path, patience: Patience = Patience()) -> int:
    """Runs a service until it is to stop, and returns the exit code of the command.

    At SIGTERM, SIGINT or SIGHUP the service gets SIGTERM; another one after a second kills it. Must be called
    in the main thread of a process that has no other children. The service is started in a session of its
    own, with the variables of ``supervised``, ``FOLDER``, and ``RAY_TMPDIR``: a folder that is removed when
    it is dead.

    Args:
        argv: program, as an absolute path, and arguments of the service process.
        folder: of the service, made if it is missing.
        patience: time limits.

    Returns:
        0 if the service ended in order; ``KILLED`` if it did not when it was to stop; ``BAD_INPUT`` if it
        ended so before it was ever ready.

    Raises:
        UserError: another process uses the folder, it cannot be written, or the program cannot be started.
    """
    with user_errors(folder):
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
    # Held before anything is ended: what runs for this folder is then left by a dead supervisor.
    with hold_folder(folder), _heard_signals() as signals:
        adopt_orphans()
        code = _Supervisor(argv, folder, patience, signals).run()
    if is_new and code == BAD_INPUT:
        with suppress(OSError):  # the service has written something
            (folder / LOCK).unlink()
            folder.rmdir()
    return code


@dataclass(slots=True)
class _Service:
    """A running service process.

    Attributes:
        pid: its pid.
        beats: descriptor from which its signs of life are read.
        since_s: when it was started, or became ready.
        beaten_s: time of its last sign of life; None before the first.
    """

    pid: int
    beats: int
    since_s: float
    beaten_s: float | None = None


@dataclass(frozen=True, slots=True)
class _End:
    """Death of a service process.

    Attributes:
        code: exit code, or the negative number of the signal that killed it.
        reason: in words.
        asked_for: whether it was to stop.
        healthy: whether it had served for long.
    """

    code: int
    reason: str
    asked_for: bool
    healthy: bool


class _Supervisor:
    """Starts and watches one service process after the other.

    Args:
        argv, folder, patience: see ``supervise_service``.
        signals: descriptor from which the numbers of arrived signals are read.
    """

    def __init__(self, argv: Sequence[str], folder: Path, patience: Patience, signals: int) -> None:
        self._argv, self._folder, self._patience, self._signals = argv, folder, patience, signals
        self._tick_s = min(1.0, patience.silent_s / 4)
        self._notify = Notifier()
        self._was_started = self._was_ready = False

    def run(self) -> int:
        """Returns the exit code of ``supervise_service``."""
        delay_s = self._patience.delay_s
        # What a supervisor that was killed has left still holds cameras, ports and GPU memory.
        if ended := self._end_leftovers():
            _LOG.warning("%d processes of an earlier start were ended", ended)
        while True:
            end = self._served()
            self._end_leftovers()
            if end.asked_for:
                return 0 if end.code in (0, AGAIN) else KILLED
            if end.code == AGAIN:
                _LOG.info("the service starts again with what was changed")
                self._notify("STATUS=Starting again with what was changed")
                continue
            if end.code == 0 or (end.code == BAD_INPUT and not self._was_ready):
                return end.code
            delay_s = self._patience.delay_s if end.healthy else delay_s
            _LOG.warning("the service %s; it is started again in %g s", end.reason, delay_s)
            self._notify(f"STATUS=The service {end.reason}; starting again")
            try:
                count_restart(self._folder, time.time(), end.reason)
            except (UserError, OSError) as error:  # a full disk must not end the supervisor
                _LOG.warning("the restart is not counted: %s", error)
            if self._is_stopped_within(delay_s):
                return 0
            delay_s = min(2 * delay_s, self._patience.longest_delay_s)

    def _served(self) -> _End:
        """Starts the service process and waits for its end."""
        try:
            service = self._start()
        except (UserError, OSError) as error:  # a full disk, no memory
            if not self._was_started:
                raise
            return _End(KILLED, f"cannot be started ({error})", asked_for=False, healthy=False)
        self._was_started = True
        return self._watch(service)

    def _start(self) -> _Service:
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        environment |= {
            FOLDER: str(self._folder.resolve()),
            SUPERVISOR_PID: str(os.getpid()),
            "RAY_TMPDIR": str(ray_folder(self._folder)),
        }
        # Neither end blocks: a service must not wait for a supervisor that is stopped, nor that for a sign.
        reads, writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_inheritable(writes, True)
        environment[HEARTBEAT_FD] = str(writes)
        try:
            with user_errors(Path(self._argv[0])):
                pid = os.posix_spawn(
                    self._argv[0],
                    list(self._argv),
                    environment,
                    setsid=True,  # Ctrl-C reaches the supervisor alone
                    setsigmask=(),
                    # What was ignored when the supervisor was started (nohup, a shell's background) would
                    # stay ignored in the service, its workers and Ray, which must hear what ends them.
                    setsigdef=_STOPS,
                )
        except BaseException:
            os.close(reads)
            raise
        finally:
            os.close(writes)
        return _Service(pid, reads, time.monotonic())

    def _watch(self, service: _Service) -> _End:
        """Waits for the end of a service process; kills it if it hangs, or does not stop in time."""
        patience, now_s, asked_s, why = self._patience, time.monotonic(), None, ""
        while True:
            stop = self._stop_asked(self._tick_s)
            before_s, now_s = now_s, time.monotonic()
            # Before its end is noticed: a service that was ready and died at once was ready all the same.
            self._hear(service, now_s)
            if (code := _reap(service.pid)) is not None:
                if stop is not None and asked_s is None:
                    code, asked_s = 0, now_s  # it had ended by itself when it was to be stopped
                break
            if now_s - before_s > self._tick_s + _OVERSLEPT_S and service.beaten_s is not None:
                service.beaten_s = now_s  # this process, or the machine, was stopped
            if stop is not None and asked_s is None:
                self._notify("STOPPING=1")
                os.kill(service.pid, signal.SIGTERM)  # whichever came: the service ends in order at this one
                asked_s = now_s
            elif asked_s is not None:
                waited_s = now_s - asked_s
                if waited_s > patience.stop_s or (stop is not None and waited_s > _AGAIN_S):
                    os.kill(service.pid, signal.SIGKILL)
            elif hangs := self._hangs(service, now_s):
                why = hangs
                os.kill(service.pid, signal.SIGKILL)
        os.close(service.beats)
        healthy = service.beaten_s is not None and now_s - service.since_s >= patience.healthy_s
        return _End(code, why or _words(code), asked_s is not None, healthy)

    def _hear(self, service: _Service, now_s: float) -> None:
        """Reads the signs of life since the last call."""
        with suppress(BlockingIOError):
            if os.read(service.beats, 4096):
                if service.beaten_s is None:
                    service.since_s, self._was_ready = now_s, True
                    self._notify("READY=1", "STATUS=Running")
                service.beaten_s = now_s

    def _hangs(self, service: _Service, now_s: float) -> str:
        """Returns how a service hangs; empty if it does not."""
        if service.beaten_s is None:
            limit_s = self._patience.start_s
            return f"was not ready after {limit_s:g} s" if now_s - service.since_s > limit_s else ""
        limit_s = self._patience.silent_s
        return f"gave no sign of life for {limit_s:g} s" if now_s - service.beaten_s > limit_s else ""

    def _is_stopped_within(self, delay_s: float) -> bool:
        """Waits, and returns whether a signal asked to stop meanwhile."""
        until_s = time.monotonic() + delay_s
        while (left_s := until_s - time.monotonic()) > 0:
            if self._stop_asked(min(left_s, self._tick_s)) is not None:
                return True
            _reap()
        return False

    def _stop_asked(self, within_s: float) -> int | None:
        """Waits for signals, and returns one that asks to stop; None if there is none.

        Tells systemd that this process is alive.
        """
        self._notify("WATCHDOG=1")
        came = select.select([self._signals], [], [], within_s)[0]
        numbers = os.read(self._signals, 4096) if came else b""
        return next((number for number in numbers if number in _STOPS), None)

    def _end_leftovers(self) -> int:
        ended = end_leftovers(self._folder, self._patience.leftover_s, _reap)
        remove_ray_folder(ray_folder(self._folder))
        return ended


@contextmanager
def _heard_signals() -> Iterator[int]:
    """Yields a descriptor to which the numbers of signals are written, whichever thread gets them."""
    reads, writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # SIGHUP stays ignored where it was: the user asked with nohup that the service outlives the terminal.
    # SIGINT does not: a shell has each job in the background of a script ignore it, which no user asked for,
    # and one who sends it means this process.
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heard = [one for one in _STOPS if not (one is signal.SIGHUP and nohup)]
    # Before the handlers, which do nothing: a signal between the two would be lost.
    woken = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    # Python writes to the descriptor only the signals that have a handler; what it does is of no use.
    before = {number: signal.signal(number, lambda *_: None) for number in (*heard, signal.SIGCHLD)}
    try:
        yield reads
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        os.close(reads)
        os.close(writes)


def _reap(wanted: int = 0) -> int | None:
    """Takes the exit codes of all dead children, also adopted ones; returns that of ``wanted``, or None."""
    code = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == wanted:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def _words(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
