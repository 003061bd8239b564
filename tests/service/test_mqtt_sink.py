"""Tests of answers over a real MQTT broker, which is killed, as is the publisher."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from answering import CLASSES, Camera, Cameras, a_message, a_service
from mosquitto import MOSQUITTO, Broker
from waiting import HANG_GUARD_S, wait_until

from ekya.config.answer_sinks import MqttSpec
from ekya.service.answers import mqtt_sink, publisher
from ekya.service.answers.messages import NotDeliveredError
from ekya.service.answers.mqtt_sink import Broker as Address
from ekya.service.answers.mqtt_sink import MqttSink
from ekya.service.answers.publisher import Publisher

pytestmark = [pytest.mark.live, pytest.mark.virtual]

CAMS = ("gate", "yard")
SPEC = {"host": "127.0.0.1"}


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A broker of this machine may be slow, and is none the worse for it."""
    for name in ("_CONNECT_S", "_CONFIRM_S"):
        monkeypatch.setattr(mqtt_sink, name, HANG_GUARD_S)


@pytest.fixture
def broker(tmp_path):
    made = a_broker(tmp_path / "broker")
    yield made
    made.kill()


@pytest.fixture
def subscriber(broker):
    made = Subscriber(broker.port)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path):
    return a_service(tmp_path)


def ids_of(subscriber):
    """Returns the ids that have arrived, in order and with repetitions."""
    return [json.loads(text)["id"] for cam in CAMS for text in subscriber.of(f"ekya/{cam}/answers")]


def sink_of(broker, **keys):
    return MqttSink(Address("127.0.0.1", broker.port, **keys), "ekya", "homeassistant")


def test_every_id_arrives_though_the_broker_is_killed(folder, broker, subscriber, monkeypatch):
    monkeypatch.setattr(publisher, "LONGEST_DELAY_S", 1.0)
    running = Publisher(folder, [MqttSpec(**SPEC, port=broker.port)], CLASSES, lambda: [])
    running.start()
    cameras, ids = Cameras(folder, *CAMS), []

    def all_arrived():
        return set(ids_of(subscriber)) >= set(ids)

    for step in range(60):
        ids.extend(cameras.see(10))
        if step == 10:
            wait_until(lambda: ids_of(subscriber), "the first messages")
            broker.save()
        if step == 20:
            # What a broker has confirmed and not passed on dies with it, which no publisher can know.
            wait_until(all_arrived, "what was sent has arrived")
            broker.kill()
        if step == 40:
            wait_until(lambda: running.sink_states()[0].error, "the publisher notices")
            broker.start()
        time.sleep(0.03)
    wait_until(all_arrived, "all messages arrive")
    running.close(within_s=HANG_GUARD_S)
    assert set(ids_of(subscriber)) == set(ids)
    (state,) = running.sink_states()
    assert (state.error, state.lost_frames, state.waiting_frames) == ("", 0, 0)
    assert state.delivered >= len(ids)


def test_every_id_arrives_though_the_publisher_is_killed(folder, broker, subscriber):
    cameras, ids = Cameras(folder, *CAMS), []
    tests = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, str(tests / "publishing.py"), str(folder.path), str(broker.port)]
    for _ in range(2):
        process = subprocess.Popen(command, env=environment)
        try:
            before = len(subscriber.of("ekya/status"))
            wait_until(
                lambda before=before: len(subscriber.of("ekya/status")) > before, "the publisher is there"
            )
            for _ in range(15):
                ids += cameras.see(20)
                time.sleep(0.05)
            wait_until(lambda: ids_of(subscriber), "some messages")
        finally:
            process.kill()
            process.wait()
        ids += cameras.see(20)
    wait_until(lambda: subscriber.of("ekya/status")[-1] == "offline", "the last will")
    last = Publisher(folder, [MqttSpec(**SPEC, port=broker.port)], CLASSES, lambda: [])
    last.start()
    last.close(within_s=HANG_GUARD_S)
    wait_until(lambda: set(ids_of(subscriber)) >= set(ids), "all messages arrive")
    assert set(ids_of(subscriber)) == set(ids)
    wait_until(lambda: subscriber.of("ekya/status") == ["online", "offline"] * 3, "it says good-bye")


def test_states_and_discovery_are_retained_and_follow_the_cameras(broker):
    sink = sink_of(broker)
    sink.report_cameras([Camera("gate"), Camera("yard", "lost", None, False)])
    sink.report_cameras([Camera("gate"), Camera("yard", "lost", None, False)])
    sink.report_cameras([Camera("gate", accuracy=0.5)])
    late = Subscriber(broker.port)
    state = {"state": "serving", "healthy": True, "accuracy": 0.5}
    wait_until(lambda: len(late.received) >= 5, "what is retained")
    assert json.loads(late.of("ekya/gate/status")[0]) == state
    assert late.of("ekya/status") == ["online"]
    configs = [topic for topic, _ in late.received if topic.startswith("homeassistant/")]
    assert len(configs) == 3
    assert all("gate" in topic for topic in configs)
    assert late.of("ekya/yard/status") == []
    sink.close()
    wait_until(lambda: late.of("ekya/status") == ["online", "offline"], "the service says that it ends")
    late.close()


def test_states_are_told_again_to_a_broker_that_has_forgotten_them(broker):
    sink = sink_of(broker)
    sink.report_cameras([Camera("gate")])
    broker.kill()
    broker.forget()
    broker.start()
    late = Subscriber(broker.port)

    def told():
        with suppress(NotDeliveredError):
            sink.report_cameras([Camera("gate")])
        return late.of("ekya/gate/status") and late.of("ekya/status")

    wait_until(told, "the states")
    late.close()
    sink.close()


def test_broker_with_users_lets_in_the_right_password_alone(tmp_path):
    maker = shutil.which("mosquitto_passwd")
    if maker is None:
        pytest.skip("no mosquitto_passwd on this machine; apt-get install mosquitto")
    passwords = tmp_path / "passwords"
    subprocess.run([maker, "-b", "-c", str(passwords), "me", "tops3cret"], check=True, capture_output=True)
    passwords.chmod(0o600)
    broker = a_broker(tmp_path / "broker", f"password_file {passwords}", users=True)
    try:
        for login in ({}, {"user": "me", "password": "wrong"}):
            sink = sink_of(broker, **login)
            with pytest.raises(NotDeliveredError, match="refuses the connection"):
                sink.send_messages([a_message(0)])
            sink.close()
        sink = sink_of(broker, user="me", password="tops3cret")
        sink.send_messages([a_message(0)])
        sink.close()
    finally:
        broker.kill()


def test_tls_is_checked_against_the_authority(tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on this machine")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    make += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [openssl, *make, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    broker = a_broker(tmp_path / "broker", f"certfile {certificate}", f"keyfile {key}")
    try:
        sink = sink_of(broker, tls=True)
        with pytest.raises(NotDeliveredError, match=r"cannot be reached.*certificate"):
            sink.send_messages([a_message(0)])
        sink = sink_of(broker, tls=True, ca=certificate)
        sink.send_messages([a_message(0)])
        sink.close()
    finally:
        broker.kill()


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
