"""MQTT broker on this machine, Debian's mosquitto, and a consumer of a service's answers that loses none."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt

from ekya.core.errors import UserError

_LISTENS_S = 120.0

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Broker:
    """Broker on a free port of this machine, from ``start`` until ``kill``; sessions are kept in a folder.

    Nothing is held back for a subscriber, so what is confirmed to the publisher is on its way.

    Args:
        folder: its own, new.
        options: further lines of its configuration.
        users: whether a client has to log in.
    """

    def __init__(self, folder: Path, *options: str, users: bool = False) -> None:
        folder.mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._file, self._stored = folder / "mosquitto.conf", folder / "mosquitto.db"
        lines = (
            f"listener {self.port} 127.0.0.1",
            f"allow_anonymous {'false' if users else 'true'}",
            "user root",
            "persistence true",
            f"persistence_location {folder}/",
            "max_inflight_messages 0",
            "max_queued_messages 0",
            *options,
        )
        self._file.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Broker":
        """Starts it; returns itself when it listens.

        Raises:
            UserError: it is not installed, or ends.
        """
        if MOSQUITTO is None:
            raise UserError("mosquitto: it is not installed; install the package of this name")
        self._process = subprocess.Popen(
            [MOSQUITTO, "-c", str(self._file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        give_up_s = time.monotonic() + _LISTENS_S
        while not self._listens():
            if time.monotonic() > give_up_s or self._process.poll() is not None:
                raise UserError(f"{self._file}: the broker does not listen")
            time.sleep(0.02)
        return self

    def save(self) -> None:
        """Has it store sessions and retained messages, as it does at times; returns when it has."""
        before_ns = self._stored_ns()
        if self._process is not None:
            self._process.send_signal(signal.SIGUSR1)
        give_up_s = time.monotonic() + _LISTENS_S
        while self._stored_ns() == before_ns:
            if time.monotonic() > give_up_s:
                raise UserError(f"{self._stored}: the broker does not store its sessions")
            time.sleep(0.02)

    def forget(self) -> None:
        """Removes what was stored."""
        self._stored.unlink(missing_ok=True)

    def kill(self) -> None:
        """Kills it, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Ends it in order: it stores what it has for consumers that are away."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def pause(self, on: bool) -> None:
        """Stops it with its connections open, or lets it go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def _stored_ns(self) -> int:
        return self._stored.stat().st_mtime_ns if self._stored.exists() else 0

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@dataclass(slots=True)
class Received:
    """Answers of a camera, each once, in the order in which they came first.

    Attributes:
        frames: their numbers.
        unix_s: times at which the frames had arrived at the service.
        received_s: times at which the consumer had the answers, by the same clock.
        again: number of answers that had come before.
    """

    frames: list[int] = field(default_factory=list)
    unix_s: list[float] = field(default_factory=list)
    received_s: list[float] = field(default_factory=list)
    again: int = 0
    _known: set[int] = field(default_factory=set)

    def add(self, frame: int, unix_s: float, received_s: float) -> None:
        """Adds an answer."""
        if frame in self._known:
            self.again += 1
            return
        self._known.add(frame)
        self.frames.append(frame)
        self.unix_s.append(unix_s)
        self.received_s.append(received_s)


class Consumer:
    """Receives all answers; the broker keeps those that come while it is away."""

    def __init__(self, port: int) -> None:
        self._cameras: dict[str, Received] = {}
        self._lock, self._there = threading.Lock(), threading.Event()
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="consumer", clean_session=False)
        client.reconnect_delay_set(1, 1)
        client.on_connect = lambda client, *_: client.subscribe("ekya/+/answers", qos=1)
        client.on_subscribe = lambda *_: self._there.set()
        client.on_message = self._receive
        client.connect("127.0.0.1", port)
        client.loop_start()
        self._client = client
        if not self._there.wait(_LISTENS_S):
            raise UserError("the broker does not confirm a subscription")

    def cameras(self) -> dict[str, Received]:
        """Returns a copy of what came so far, by camera."""
        with self._lock:
            return {
                name: Received(list(one.frames), list(one.unix_s), list(one.received_s), one.again)
                for name, one in self._cameras.items()
            }

    def ids(self) -> set[str]:
        """Returns the ids of all answers that came so far."""
        with self._lock:
            return {f"{name}/{frame}" for name, one in self._cameras.items() for frame in one.frames}

    def close(self) -> None:
        """Ends the connection."""
        self._client.disconnect()
        self._client.loop_stop()

    def _receive(self, _client: Any, _data: Any, message: Any) -> None:
        received_s = time.time()
        with suppress(ValueError, KeyError):
            told = json.loads(message.payload)
            at_s = datetime.fromisoformat(told["time"]).timestamp()
            with self._lock:
                self._cameras.setdefault(told["camera"], Received()).add(int(told["frame"]), at_s, received_s)
