"""A fleet without a fleet file: videos and cameras named on the command line."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ekya.config import DEFAULT_FLEET, FleetConfig, load_fleet, parse_fleet
from ekya.labeling.names import DETECTOR_NAMES, ONNX
from ekya.shipped import shipped_path


def fleet_from_videos(
    videos: Sequence[Sequence[Path]],
    golden: str | Path,
    changes: Mapping[str, object] | None = None,
    cameras: Sequence[str] = (),
) -> FleetConfig:
    """One stream for each list of files and each URL, ``cam-1`` onwards, with the shipped fleet's edge model.

    Sizes are left open: they are chosen for the machine and the number of streams.

    Args:
        videos: files that play one after the other, for each stream.
        golden: a golden detector: an ONNX file, the name of a torchvision detector, or
            ``NAME=FILE`` for one with weights from a local file.
        changes: top-level keys to set instead of the defaults (windows until the videos end, the classes that
            occur).
        cameras: URLs of live cameras, as in ``CameraSpec``; they come after the videos.

    Raises:
        UserError: as ``load_fleet``.
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
    if golden in DETECTOR_NAMES:
        return {"model": golden}
    return {"model": ONNX, "weights": golden}
