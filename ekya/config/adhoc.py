"""Fleet from videos and cameras on the command line, without a fleet file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ekya.config.fleet_file import DEFAULT_FLEET, FleetConfig, load_fleet, parse_fleet
from ekya.config.shipped import shipped_path
from ekya.models.golden.registry import DETECTORS, ONNX


def fleet_from_videos(
    videos: Sequence[Sequence[Path]],
    golden: str | Path,
    changes: Mapping[str, object] | None = None,
    cameras: Sequence[str] = (),
) -> FleetConfig:
    """Makes one stream per list of files and per URL, from ``cam-1`` on, with the shipped fleet's edge model.

    Sizes are left open: they are chosen for the machine and the number of streams.

    Args:
        videos: for each stream, files that are played one after the other.
        golden: a golden detector: an ONNX file, the name of a torchvision detector, or
            ``NAME=FILE`` for one with weights from a local file.
        changes: top-level keys that override the defaults (windows until the videos end, the classes that
            occur).
        cameras: URLs of live cameras, see ``CameraSpec``; they come after the videos.

    Raises:
        UserError: see ``load_fleet``.
    """
    sources: list[Mapping[str, object]] = [{"kind": "video", "files": list(files)} for files in videos]
    sources += [{"kind": "camera", "url": url} for url in cameras]
    raw = {
        "name": "cameras" if cameras else "videos",
        "golden": _golden_entry(str(golden)),
        "streams": [
            {"id": f"cam-{number}", "source": source} for number, source in enumerate(sources, start=1)
        ],
        "edge": load_fleet(shipped_path(DEFAULT_FLEET)).edge.model_dump(),
    }
    return parse_fleet({**raw, **(changes or {})}, "command line", (Path(),))


def _golden_entry(golden: str) -> Mapping[str, object]:
    name, equals, file = golden.partition("=")
    if equals:
        return {"model": name, "weights": file}
    if golden in DETECTORS:
        return {"model": golden}
    return {"model": ONNX, "weights": golden}
