"""Section ``answers`` of the fleet file: where a service sends what it sees."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SerializeAsAny, model_validator

from ekya.config.fleet_sections import FleetSection
from ekya.core.errors import UserError
from ekya.core.objects import SURE
from ekya.core.plug_ins import PlugInGroup, or_plug_in
from ekya.core.units import StreamId
from ekya.results.storage.run_folder import check_stream_name
from ekya.streams.ingest.credentials import has_password
from ekya.system.files import FOLDER

_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_WEB = re.compile(r"https?://[^\s/]|\$\{")
_TOPIC = re.compile(r"[^\s/+#$\0]+(/[^\s/+#$\0]+)*")


def _is_variable(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise ValueError("a secret does not stand in the file; write ${NAME} for an environment variable")
    return text


def _is_plain(name: str) -> str:
    try:
        check_stream_name(StreamId(name))
    except UserError as error:
        raise ValueError("use letters, digits, '-', '_' and '.' only") from error
    return name


def _is_web_address(url: str) -> str:
    if not _WEB.match(url):
        raise ValueError("write an http:// or https:// URL")
    if has_password(url):
        raise ValueError("the URL has a secret; write ${NAME} for an environment variable in its place")
    return url


def _is_topic(topic: str) -> str:
    if not _TOPIC.fullmatch(topic):
        raise ValueError("use words with '/' between them, without spaces, '+', '#' and '$'")
    return topic


Secret = Annotated[str, AfterValidator(_is_variable)]
SinkName = Annotated[str, AfterValidator(_is_plain)]
Topic = Annotated[str, AfterValidator(_is_topic)]


MinConfidence = Annotated[float, Field(ge=0, le=1)]


class JsonlSpec(FleetSection):
    """Lines of JSON in ``<name>.jsonl``; older files are ``<name>.jsonl.1``, ``.2`` and so on.

    Attributes:
        name: name of the sink and of its file.
        folder: existing folder for the files; None for ``answers`` in the service's folder.
        megabytes: size at which a new file is begun.
        files: number of files that are kept.
        min_confidence: of a detector's boxes, those with less confidence are not sent; below 0.5 unsure ones
            are, marked as such.
    """

    kind: Literal["jsonl"] = "jsonl"
    name: SinkName = "jsonl"
    folder: Annotated[Path | None, FOLDER] = None
    megabytes: float = Field(default=100, gt=0)
    files: int = Field(default=10, ge=1)
    min_confidence: MinConfidence = SURE


class WebhookSpec(FleetSection):
    """Batches of messages, each a POST that a status of 200 to 299 confirms.

    Attributes:
        name: name of the sink.
        url: an ``http://`` or ``https://`` URL; ``${NAME}`` stands for the environment variable of that name.
        secret: ``${NAME}``, with which bodies are signed in the header ``X-Ekya-Signature``; None signs none.
        bearer: ``${NAME}``, a token that is sent in the header ``Authorization``; None sends none.
        timeout_s: seconds to wait for a connection, and for a reply.
        batch: largest number of messages in a POST.
        min_confidence: as of a file.
    """

    kind: Literal["webhook"] = "webhook"
    name: SinkName = "webhook"
    url: Annotated[str, AfterValidator(_is_web_address)]
    secret: Secret | None = None
    bearer: Secret | None = None
    timeout_s: float = Field(default=10, gt=0, le=60)
    batch: int = Field(default=100, ge=1, le=1000)
    min_confidence: MinConfidence = SURE


class MqttSpec(FleetSection):
    """Messages to an MQTT broker, and the state of the cameras; Home Assistant discovers them.

    Attributes:
        name: name of the sink.
        host: of the broker.
        port: of the broker; None for 1883, or 8883 with TLS.
        user: user name, or ``${NAME}``; None for none.
        password: ``${NAME}``; None for none.
        tls: whether the connection is encrypted and the broker's certificate checked.
        ca: file of the authorities that may have signed it, in PEM; None for those of the system.
        prefix: first words of all topics. Every service of a broker needs its own.
        discovery: prefix of Home Assistant's discovery; None announces nothing.
        min_confidence: as of a file.
    """

    kind: Literal["mqtt"] = "mqtt"
    name: SinkName = "mqtt"
    host: str = Field(min_length=1)
    port: int | None = Field(default=None, ge=1, le=65535)
    user: str | None = None
    password: Secret | None = None
    tls: bool = False
    ca: Path | None = None
    prefix: Topic = "ekya"
    discovery: Topic | None = "homeassistant"
    min_confidence: MinConfidence = SURE

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.ca is not None and not self.tls:
            raise ValueError("ca is for TLS; write tls: true, or remove it")
        if self.password is not None and self.user is None:
            raise ValueError("a password needs a user; add one")
        return self


AnySink = Annotated[
    JsonlSpec | WebhookSpec | MqttSpec,
    Field(discriminator="kind"),
    SerializeAsAny(),
    or_plug_in(PlugInGroup.SINKS),
]
"""Sinks, distinguished by the key ``kind``. Add the specification of a new sink here, and the sink to
``ekya/service/answers/registry.py``."""


def find_repeated_name(sinks: Sequence[AnySink]) -> str | None:
    """Returns what is wrong with the names of sinks; None if nothing is."""
    names = [sink.name for sink in sinks]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"two sinks are called {twice[0]}; give each its own name" if twice else None
