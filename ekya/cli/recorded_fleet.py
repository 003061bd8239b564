"""Fleet file of recorded cameras."""

import logging
from collections.abc import Mapping
from pathlib import Path

import yaml

from ekya.config.files import relative_paths
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import parse_fleet
from ekya.config.fleet_sections import StreamConfig
from ekya.config.shipped import shipped_root
from ekya.core.units import US_PER_S, StreamId
from ekya.models.golden.registry import FILE
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.recorder import Recording
from ekya.streams.ingest.script import Lost

_LOG = logging.getLogger(__name__)


def losses_of(recording: Recording) -> tuple[Lost, ...]:
    """Returns the outages of a camera as script events: frames that only repeat the last picture."""

    def seconds(frames: int) -> float:
        # Same rounding as the time stamps of the video source.
        return round(frames * US_PER_S / recording.fps) / US_PER_S

    return tuple(
        Lost(at_s=seconds(gap.begin), for_s=round(seconds(gap.end) - seconds(gap.begin), 6))
        for gap in recording.gaps
    )


def recorded_fleet_text(
    fleet: FleetConfig, recorded: Mapping[StreamId, Recording], left_out: Mapping[StreamId, str], out: Path
) -> str:
    """Returns the fleet with recordings in place of its cameras, as YAML.

    Args:
        fleet: with cameras.
        recorded: their files, in the folder of the fleet file.
        left_out: cameras without a recording, and the reason; the result does not contain them.
        out: path of the fleet file; paths in its folder are written relative to it.

    Raises:
        UserError: the recordings no longer exist.
    """
    raw = fleet.model_dump(mode="json", exclude_unset=True, exclude={"streams"})
    raw["streams"] = [
        _entry(fleet, stream, recorded.get(stream.id))
        for stream in fleet.streams
        if stream.id not in left_out
    ]
    folders = (out.parent.resolve(), shipped_root().resolve())
    portable = {key: relative_paths(value, folders) for key, value in raw.items()}
    parse_fleet(portable, str(out), folders)
    lines = ["# Live cameras as ekya record has seen them; where one was lost, its play.script says so."]
    lines += [f"# Left out: {stream}, {' '.join(why.split())}" for stream, why in sorted(left_out.items())]
    return "\n".join([*lines, yaml.safe_dump(portable, sort_keys=False, allow_unicode=True)])


def _entry(fleet: FleetConfig, stream: StreamConfig, recording: Recording | None) -> dict[str, object]:
    """Returns a stream's section, with the keys that were set."""
    raw: dict[str, object] = stream.model_dump(mode="json", exclude_unset=True)
    if recording is None:
        return raw
    raw.pop("play", None)
    size = {"max_side": stream.source.max_side} if isinstance(stream.source, CameraSpec) else {}
    raw["source"] = {"kind": "video", "files": [str(recording.file.resolve())], **size}
    losses = losses_of(recording)
    if fleet.golden.model != FILE:
        if losses:
            raw["play"] = {"script": [lost.model_dump(mode="json") for lost in losses]}
        return raw
    for lost in losses:
        _LOG.warning(
            "%s was lost at %.1f s for %.1f s, and its file repeats a picture there: with the golden "
            "model %r no script may say so",
            stream.id,
            lost.at_s,
            lost.for_s,
            FILE,
        )
    return raw
