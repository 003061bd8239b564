"""MQTT broker on this machine, Debian's mosquitto, and a subscriber that keeps its session."""

import threading

import paho.mqtt.client as mqtt
import pytest
from mosquitto import MOSQUITTO, Broker
from waiting import HANG_GUARD_S


def a_broker(folder, *options, users=False):
    """Starts a broker; skips the test if there is no mosquitto."""
    if MOSQUITTO is None:
        pytest.skip("no MQTT broker on this machine; apt-get install mosquitto")
    return Broker(folder, *options, users=users).start()


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
        assert self._there.wait(HANG_GUARD_S), "the subscription was not confirmed"

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
