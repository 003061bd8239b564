"""Retained MQTT messages by which Home Assistant discovers the cameras of a service."""

import json
import re
from collections.abc import Iterator
from zlib import crc32

_COUNT = "{{ value_json.objects | count }}"
_ACCURACY = "{{ (value_json.accuracy * 100) | round(1) if value_json.accuracy is not none else none }}"
_PROBLEM = "{{ 'OFF' if value_json.healthy else 'ON' }}"


def discovery(discovery_prefix: str, prefix: str, camera: str) -> Iterator[tuple[str, str]]:
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
