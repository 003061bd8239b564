"""MQTT broker on this machine, Debian's mosquitto, and a subscriber that keeps its session."""

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def wait_for(condition, what, within_s=15.0):
    give_up_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)


class Broker:
    """Broker on a free port, from ``start`` until ``kill``; skips the test if there is no mosquitto.

    Nothing is held back for a subscriber, so what is confirmed to the publisher is on its way.
    """

    def __init__(self, folder: Path, *options: str, users: bool = False):
        if MOSQUITTO is None:
            pytest.skip("no MQTT broker on this machine; apt-get install mosquitto")
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._file, self._stored = folder / "mosquitto.conf", folder / "mosquitto.db"
        lines = [
            f"listener {self.port} 127.0.0.1",
            f"allow_anonymous {'false' if users else 'true'}",
            "user root",
            "persistence true",
            f"persistence_location {folder}/",
            "max_inflight_messages 0",
            "max_queued_messages 0",
            *options,
        ]
        self._file.write_text("\n".join(lines) + "\n")
        self._process = None

    def start(self):
        self._process = subprocess.Popen(
            [MOSQUITTO, "-c", str(self._file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(self._listens, "the broker listens")
        return self

    def save(self):
        """Stores sessions and retained messages, as it does at times."""
        before = self._stored.stat().st_mtime_ns if self._stored.exists() else 0
        self._process.send_signal(signal.SIGUSR1)
        wait_for(
            lambda: self._stored.exists() and self._stored.stat().st_mtime_ns > before, "the broker has saved"
        )

    def forget(self):
        """Removes what was stored."""
        self._stored.unlink(missing_ok=True)

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _listens(self):
        assert self._process.poll() is None, "the broker has ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class Subscriber:
    """Receives everything; messages that come while it is away are kept for it.

    Attributes:
        received: topics and payloads, in the order of arrival.
    """

    def __init__(self, port, login=None):
        self.received = []
        self._lock, self._there = threading.Lock(), threading.Event()
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="subscriber", clean_session=False)
        client.reconnect_delay_set(1, 1)
        if login is not None:
            client.username_pw_set(*login)
        client.on_connect = lambda client, *_: client.subscribe("#", qos=1)
        client.on_subscribe = lambda *_: self._there.set()
        client.on_message = self._receive
        client.connect("127.0.0.1", port)
        client.loop_start()
        self._client = client
        assert self._there.wait(10), "the subscription was not confirmed"

    def of(self, topic):
        """Returns the payloads of a topic, as text."""
        with self._lock:
            return [payload for there, payload in self.received if there == topic]

    def close(self):
        self._client.disconnect()
        self._client.loop_stop()

    def _receive(self, _client, _data, message):
        with self._lock:
            self.received.append((message.topic, message.payload.decode()))
