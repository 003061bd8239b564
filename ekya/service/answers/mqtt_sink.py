"""Sink that publishes messages and states to an MQTT broker, and has Home Assistant discover the cameras."""

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from zlib import crc32

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from ekya.service.answers.messages import CameraReport, Message, NotDeliveredError

_COUNT = "{{ value_json.objects | count }}"
_ACCURACY = "{{ (value_json.accuracy * 100) | round(1) if value_json.accuracy is not none else none }}"
_PROBLEM = "{{ 'OFF' if value_json.healthy else 'ON' }}"


def discovery_messages(discovery_prefix: str, prefix: str, camera: str) -> Iterator[tuple[str, str]]:
    """Yields topic and payload of each entity of a camera.

    They are a sensor for the number of objects, one for the estimated accuracy, and a binary sensor that is
    on while the camera is not healthy; all are unavailable while the service is.

    Args:
        discovery_prefix: of Home Assistant, ``homeassistant`` unless it was changed there.
        prefix: of the service's topics.
        camera: name of the stream.
    """
    node = _plain(f"{prefix}-{camera}")
    entities: tuple[tuple[str, str, dict[str, str]], ...] = (
        (
            "sensor",
            "objects",
            {
                "name": "Objects",
                "state_topic": answers_topic(prefix, camera),
                "value_template": _COUNT,
                "state_class": "measurement",
                "icon": "mdi:counter",
            },
        ),
        (
            "sensor",
            "accuracy",
            {
                "name": "Estimated accuracy",
                "state_topic": camera_topic(prefix, camera),
                "value_template": _ACCURACY,
                "state_class": "measurement",
                "unit_of_measurement": "%",
                "icon": "mdi:target",
                "entity_category": "diagnostic",
            },
        ),
        (
            "binary_sensor",
            "health",
            {
                "name": "Health",
                "state_topic": camera_topic(prefix, camera),
                "value_template": _PROBLEM,
                "device_class": "problem",
                "entity_category": "diagnostic",
            },
        ),
    )
    for component, entity, keys in entities:
        payload = {
            **keys,
            "unique_id": f"{node}-{entity}",
            "availability_topic": service_topic(prefix),
            "device": {"identifiers": [node], "name": camera, "manufacturer": "Ekya", "model": "camera"},
        }
        yield f"{discovery_prefix}/{component}/{node}/{entity}/config", json.dumps(payload)


def service_topic(prefix: str) -> str:
    """Returns the topic that says ``online`` or ``offline``."""
    return f"{prefix}/status"


def camera_topic(prefix: str, camera: str) -> str:
    """Returns the topic of a camera's state."""
    return f"{prefix}/{camera}/status"


def answers_topic(prefix: str, camera: str) -> str:
    """Returns the topic of a camera's messages."""
    return f"{prefix}/{camera}/answers"


def _plain(name: str) -> str:
    """Returns a name of the characters that Home Assistant allows; different for different names."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return plain if plain == name else f"{plain}-{crc32(name.encode()):08x}"


KEEP_ALIVE_S = 30
"""The broker publishes the last will when it has heard nothing for one and a half times as long."""

_CONNECT_S, _CONFIRM_S, _LOOK_S = 5.0, 10.0, 0.2
_ONLINE, _OFFLINE = "online", "offline"


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker and how to log in.

    Attributes:
        host, port: its address.
        user, password: None for none.
        tls: whether the connection is encrypted.
        ca: file of trusted authorities; None for those of the system.
    """

    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: Path | None = None


class MqttSink:
    """Publishes at QoS 1 and awaits the broker's confirmation.

    Topics are ``<prefix>/<camera>/answers`` and, retained, ``<prefix>/status`` (``online`` or ``offline``,
    also as last will), ``<prefix>/<camera>/status`` and those of Home Assistant's discovery. A connection
    that fails is replaced by a new one with the same client id, so the broker never has two of a service.
    paho's own queue and reconnection are not used: what was not confirmed is sent again from the predictions.

    Args:
        broker: the broker.
        prefix: of all topics.
        discovery_prefix: of Home Assistant's discovery; None announces nothing.
    """

    batch = 200

    def __init__(self, broker: Broker, prefix: str, discovery_prefix: str | None) -> None:
        self._broker, self._prefix, self._discovery_prefix = broker, prefix, discovery_prefix
        self._client: Client | None = None
        # What the broker retains of this connection, and topics that were ever retained.
        self._retained: dict[str, str] = {}
        self._known: set[str] = set()

    def send_messages(self, messages: Sequence[Message]) -> None:
        """Publishes the messages, each under the topic of its camera."""
        client = self._connected()
        self._publish(
            client,
            (
                (answers_topic(self._prefix, one["camera"]), json.dumps(one, ensure_ascii=False))
                for one in messages
            ),
        )

    def report_cameras(self, cameras: Sequence[CameraReport]) -> None:
        """Publishes changes of the cameras' states, and removes the topics of cameras that are gone."""
        client = self._connected()
        wanted = dict(self._states(cameras))
        changed = {topic: text for topic, text in wanted.items() if self._retained.get(topic) != text}
        gone = self._known - wanted.keys()
        # An empty retained payload makes the broker forget the topic.
        self._publish(client, [*changed.items(), *((topic, "") for topic in sorted(gone))], retain=True)
        # Only once all of it is confirmed: what is missing is published again on the next connection.
        self._retained, self._known = wanted, set(wanted)

    def close(self) -> None:
        """Says that the service is offline, and disconnects."""
        client = self._client
        if client is not None and client.is_connected():
            with suppress(NotDeliveredError):
                self._publish(client, [(service_topic(self._prefix), _OFFLINE)], retain=True)
        self._drop()

    def _states(self, cameras: Sequence[CameraReport]) -> Iterable[tuple[str, str]]:
        for camera in cameras:
            state = {
                "state": camera.state,
                "healthy": camera.healthy,
                "accuracy": None if camera.accuracy is None else round(camera.accuracy, 3),
            }
            yield camera_topic(self._prefix, camera.id), json.dumps(state)
            if self._discovery_prefix is not None:
                yield from discovery_messages(self._discovery_prefix, self._prefix, camera.id)

    def _connected(self) -> Client:
        """Returns the client, connected."""
        if self._client is None or not self._client.is_connected():
            self._drop()
            self._client = self._connect()
            # A broker that was started again may have forgotten what it retained.
            self._retained = {}
            self._publish(self._client, [(service_topic(self._prefix), _ONLINE)], retain=True)
        return self._client

    def _connect(self) -> Client:
        broker = self._broker
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"ekya{crc32(self._prefix.encode()):08x}",
            protocol=MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
        )
        client.connect_timeout = _CONNECT_S
        if broker.user is not None:
            client.username_pw_set(broker.user, broker.password)
        # Before the connection: the will is a part of its first packet.
        client.will_set(service_topic(self._prefix), _OFFLINE, qos=1, retain=True)
        replies: SimpleQueue[Any] = SimpleQueue()
        client.on_connect = lambda _client, _data, _flags, reason, _properties: replies.put(reason)
        try:
            if broker.tls:
                client.tls_set(None if broker.ca is None else str(broker.ca))
            client.connect(broker.host, broker.port, KEEP_ALIVE_S)
        except (OSError, ValueError) as error:
            raise NotDeliveredError(f"the broker cannot be reached ({error})") from error
        client.loop_start()
        try:
            reason = replies.get(timeout=_CONNECT_S)
        except Empty:
            _end(client)
            raise NotDeliveredError("the broker does not answer") from None
        if reason.is_failure:
            _end(client)
            raise NotDeliveredError(f"the broker refuses the connection ({reason})")
        return client

    def _publish(self, client: Client, pairs: Iterable[tuple[str, str]], retain: bool = False) -> None:
        """Publishes topics and payloads, and waits for the confirmation of all."""
        # All are sent before any is waited for, so that not each takes a round trip of its own.
        under_way = [client.publish(topic, text, qos=1, retain=retain) for topic, text in pairs]
        give_up_s = time.monotonic() + _CONFIRM_S
        for one in under_way:
            try:
                while not one.is_published() and client.is_connected() and time.monotonic() < give_up_s:
                    one.wait_for_publish(_LOOK_S)
                confirmed = one.is_published()
            except (RuntimeError, ValueError):
                confirmed = False
            if not confirmed:
                # The client goes with its queue, which would send beside the repetition.
                self._drop()
                raise NotDeliveredError("the broker has not confirmed everything")

    def _drop(self) -> None:
        if self._client is not None:
            _end(self._client)
            self._client = None


def _end(client: Client) -> None:
    """Disconnects, and ends the client's thread."""
    client.disconnect()
    client.loop_stop()
