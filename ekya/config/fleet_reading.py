"""Reads, checks and writes fleet files."""

import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ekya.config.files import find_files
from ekya.config.fleet_file import LABELLED_FRAMES, OPEN, FleetConfig
from ekya.config.fleet_sections import StreamConfig
from ekya.config.keys_in_words import (
    describe_first_problem,
    describe_problems,
    describe_schema,
    without_unknown_keys,
)
from ekya.config.shipped import shipped_root
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.results.storage.journal import is_of_other_version
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.segmented_journal import newest_segment
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.credentials import has_password, mask_passwords, replace_passwords, require_variables
from ekya.system.files import write_text_atomic
from ekya.system.yaml_file import read_mapping

_LOG = logging.getLogger(__name__)

NAMES_SCHEMA = "# yaml-language-server: $schema="
"""First line of a fleet file with which editors find its JSON Schema."""

SCHEMA_NAME = "fleet.schema.json"


def load_fleet(path: Path, changes: Mapping[str, object] | None = None) -> FleetConfig:
    """Reads a fleet file; relative paths are resolved against its folder, then against Ekya's own data.

    Args:
        path: the file.
        changes: top-level keys that override the file, such as those of the command line.

    Raises:
        UserError: one sentence with file, key and remedy.
    """
    raw = read_mapping(path)
    origin = f"{path} with {', '.join(changes)} changed" if changes else str(path)
    folders = (path.parent, shipped_root())
    return parse_fleet({**raw, **(changes or {})}, origin, folders, changed=changes or ())


def load_kept_fleet(folder: RunFolder) -> tuple[FleetConfig, list[str]]:
    """Reads the fleet file that a run or a service has kept in its folder.

    Returns also the keys that this version does not have and that are left out. That is so in the folder of
    another version, which wrote all keys that it had; in one of this version they are misspelt.

    Raises:
        UserError: see ``load_fleet``.
    """
    journal = newest_segment(folder)
    if not (journal.is_file() and is_of_other_version(journal)):
        return load_fleet(folder.fleet), []
    raw = read_mapping(folder.fleet)
    gone: list[str] = []
    try:
        FleetConfig.model_validate(raw, context=set())
    except ValidationError as error:
        raw, gone = without_unknown_keys(error, raw)
    return parse_fleet(raw, str(folder.fleet), (folder.path, shipped_root())), gone


def check_fleet(path: Path) -> tuple[FleetConfig | None, list[str]]:
    """Returns the fleet of a file, or None and every problem that ``load_fleet`` would find in it."""
    try:
        raw = read_mapping(path)
        FleetConfig.model_validate(raw, context=set())
        # Not read again: a FIFO is read once.
        return parse_fleet(raw, str(path), (path.parent, shipped_root())), []
    except ValidationError as error:
        return None, [mask_passwords(f"{path}: {one}") for one in describe_problems(error, raw, FleetConfig)]
    except UserError as error:
        return None, [mask_passwords(str(error))]


def with_play(fleet: FleetConfig, changes: Mapping[str, object]) -> FleetConfig:
    """Returns the fleet with these playback settings for every recording, as from the command line.

    Raises:
        UserError: see ``load_fleet``.
    """
    raw = _written(fleet)
    streams = [
        stream if known.source.live else {**stream, "play": {**stream["play"], **changes}}
        for known, stream in zip(fleet.streams, raw["streams"], strict=True)
    ]
    return parse_fleet({**raw, "streams": streams}, "command line", (Path(),), changed=changes)


def with_stream(fleet: FleetConfig, values: Mapping[str, object]) -> StreamConfig:
    """Returns one more stream of a fleet, given as in its file.

    A password must be a variable that is set here: it would neither reach the processes that run already nor
    be there after a restart.

    Raises:
        UserError: see ``load_fleet``; or the stream has a password.
    """
    raw = _written(fleet)
    source = values.get("source")
    for key in ("url", "url_detect"):
        url = source.get(key) if isinstance(source, Mapping) else None
        if isinstance(url, str) and has_password(url):
            raise UserError(
                f"key 'source.{key}': it has a password; put that into a variable of the service's "
                "environment, say CAM_PASSWORD, and write ${CAM_PASSWORD} in its place"
            )
        require_variables(str(url))
    larger = parse_fleet({**raw, "streams": [*raw["streams"], dict(values)]}, "the request", (Path(),))
    return larger.stream(StreamId(str(values["id"])))


def with_values(fleet: FleetConfig, values: Mapping[str, object]) -> FleetConfig:
    """Returns the fleet with other values of some keys, such as ``golden.labels_per_window``.

    Raises:
        UserError: see ``load_fleet``.
    """
    raw = _written(fleet)
    for key, value in values.items():
        part, _, name = key.rpartition(".")
        (raw[part] if part else raw)[name] = value
    return parse_fleet(raw, "the request", (Path(),), changed=tuple(values))


def _written(fleet: FleetConfig) -> dict[str, Any]:
    """Returns a fleet as JSON values, without the sizes that are open."""
    raw: dict[str, Any] = fleet.model_dump(mode="json")
    for key in (*OPEN, LABELLED_FRAMES):
        if not fleet.is_set(key):
            part, _, name = key.rpartition(".")
            del (raw[part] if part else raw)[name]
    return raw


def dump_fleet(fleet: FleetConfig) -> str:
    """Returns YAML that ``load_fleet`` reads back to the same fleet from any folder."""
    return yaml.safe_dump(_written(fleet), sort_keys=False, allow_unicode=True)


def write_fleet(path: Path, fleet: FleetConfig) -> None:
    """Writes a fleet file, and beside it the JSON Schema that its first line names to editors.

    Raises:
        UserError: no permission and the like.
    """
    schema, text = path.with_name(SCHEMA_NAME), dump_schema()
    if not (schema.is_file() and schema.read_text(encoding="utf-8") == text):
        write_text_atomic(schema, text)
    write_text_atomic(path, f"{NAMES_SCHEMA}{SCHEMA_NAME}\n{dump_fleet(fleet)}")


def renew_fleet(folder: RunFolder) -> None:
    """Writes the fleet file in a service's folder without keys that were only another version's.

    Raises:
        UserError: see ``load_fleet``; no permission and the like.
    """
    fleet, gone = load_kept_fleet(folder)
    if gone:
        _LOG.warning("%s: this version has no %s; left out", folder.fleet, ", ".join(gone))
        write_fleet(folder.fleet, fleet)


def dump_schema() -> str:
    """Returns the JSON Schema of the fleet file, with the meaning of each key, as JSON."""
    return json.dumps(describe_schema(FleetConfig), indent=2, ensure_ascii=False) + "\n"


def parse_fleet(
    raw: Mapping[str, object], origin: str, folders: Sequence[Path], changed: Collection[str] = ()
) -> FleetConfig:
    """Builds a fleet from keys and values.

    Args:
        raw: as in a fleet file.
        origin: name of the source in error messages.
        folders: folders against which relative paths are resolved.
        changed: top-level keys that override the file. If there are any, sizes of the file that contradict
            them are no error: they are fitted.

    Raises:
        UserError: see ``load_fleet``.
    """
    try:
        fleet = FleetConfig.model_validate(raw, context=set(changed))
    except ValidationError as error:
        raise UserError(
            mask_passwords(f"{origin}: {describe_first_problem(error, raw, FleetConfig)}")
        ) from None
    streams = tuple(_without_passwords(fleet.streams))
    return find_files(fleet.model_copy(update={"streams": streams}), origin, folders)


def _without_passwords(streams: Sequence[StreamConfig]) -> Iterator[StreamConfig]:
    """Yields the streams with camera passwords replaced by references to variables of the environment.

    So passwords are never written to disk. Child processes that open a camera inherit the variables. To
    resume a run later, set them again.
    """
    prefixes: set[str] = set()
    for stream in streams:
        source = stream.source
        if isinstance(source, CameraSpec):
            for key, url in source.urls.items():
                name = f"{stream.id}{key.removeprefix('url')}"
                prefix = "EKYA_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
                while prefix in prefixes:
                    prefix += "_2"
                prefixes.add(prefix)
                without, passwords = replace_passwords(url, prefix)
                os.environ.update(passwords)
                source = source.model_copy(update={key: without})
        yield stream.model_copy(update={"source": source})
