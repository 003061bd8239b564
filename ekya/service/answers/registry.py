"""All kinds of sinks of the fleet file, by ``kind``."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from ekya.config.answer_sinks import AnySink, JsonlSpec, MqttSpec, WebhookSpec
from ekya.results.storage.run_folder import RunFolder
from ekya.service.answers.jsonl_sink import JsonlSink
from ekya.service.answers.messages import Sink, SinkSpec
from ekya.service.answers.mqtt_sink import Broker, MqttSink
from ekya.service.answers.webhook_sink import WebhookSink
from ekya.streams.ingest.credentials import fill_in_url, fill_in_variables

MQTT_PORT, MQTT_TLS_PORT = 1883, 8883


def make_sink(spec: AnySink, folder: RunFolder) -> Sink:
    """Returns the sink of a section; nothing is opened yet.

    Args:
        spec: the section.
        folder: of the service.

    Raises:
        UserError: an environment variable that it names is not set.
    """
    if spec.kind in SINKS:
        return SINKS[spec.kind](spec, folder)
    return cast(SinkSpec, spec).open(folder.answers_folder)


def _jsonl(spec: JsonlSpec, folder: RunFolder) -> Sink:
    path = (spec.folder or folder.answers_folder) / f"{spec.name}.jsonl"
    return JsonlSink(path, round(spec.megabytes * 1e6), spec.files)


def _webhook(spec: WebhookSpec, _folder: RunFolder) -> Sink:
    url, secret, bearer = (_filled(spec, key) for key in ("url", "secret", "bearer"))
    return WebhookSink(url or "", secret, bearer, spec.timeout_s, spec.batch)


def _mqtt(spec: MqttSpec, _folder: RunFolder) -> Sink:
    user, password = _filled(spec, "user"), _filled(spec, "password")
    port = spec.port or (MQTT_TLS_PORT if spec.tls else MQTT_PORT)
    broker = Broker(spec.host, port, user, password, spec.tls, spec.ca)
    return MqttSink(broker, spec.prefix, spec.discovery)


def _filled(spec: AnySink, key: str) -> str | None:
    text = getattr(spec, key)
    fill_in = fill_in_url if key == "url" else fill_in_variables
    return None if text is None else fill_in(text, f"the {key} of the answers called {spec.name}")


SINKS: Mapping[str, Callable[[Any, RunFolder], Sink]] = {"jsonl": _jsonl, "webhook": _webhook, "mqtt": _mqtt}
"""Functions that make the sink of a section, by ``kind``. Add a new sink here, its section to ``AnySink``,
and an example to ``EXAMPLES`` in ``tests/service/test_every_sink.py``."""
