"""Fleet from videos and cameras on the command line, without a fleet file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ekya.config.fleet_file import DEFAULT_FLEET, FleetConfig
from ekya.config.fleet_reading import load_fleet, parse_fleet
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import DETECTORS as STUDENTS
from ekya.models.edge.architecture_table import FASTESTDET, Task
from ekya.models.golden.registry import DETECTORS, ONNX

GOLDEN_EVERY = (3, 5, 9, 15)
"""λ of the golden detector for cameras without a student.

The shipped base that their detectors start from finds next to nothing before its first retraining.
"""


def fleet_from_videos(
    videos: Sequence[Sequence[Path]],
    golden: str | Path,
    changes: Mapping[str, object] | None = None,
    cameras: Sequence[str] = (),
    student: str | None = None,
    task: Task = Task.DETECT,
) -> FleetConfig:
    """Makes one stream per list of files and per URL, from ``cam-1`` on.

    Models that classify are the shipped fleet's. Those that detect start from ``student``, or from the
    shipped base; then the golden detector is offered as λ too. Sizes are left open: they are chosen for the
    machine and the number of streams.

    Args:
        videos: for each stream, files that are played one after the other.
        golden: a golden detector: an ONNX file, the name of a torchvision detector, or
            ``NAME=FILE`` for one with weights from a local file.
        changes: top-level keys that override the defaults (windows until the videos end, the classes that
            occur).
        cameras: URLs of live cameras, see ``CameraSpec``; they come after the videos.
        student: detector that every stream starts with: a file of weights, or ``NAME=FILE``.
        task: of the edge models.

    Raises:
        UserError: see ``load_fleet``; or the task is not the student's.
    """
    sources: list[Mapping[str, object]] = [{"kind": "video", "files": list(files)} for files in videos]
    sources += [{"kind": "camera", "url": url} for url in cameras]
    detector = _golden_entry(str(golden))
    raw: dict[str, object] = {
        "name": "cameras" if cameras else "videos",
        "golden": detector,
        "streams": [
            {"id": f"cam-{number}", "source": source} for number, source in enumerate(sources, start=1)
        ],
        "edge": _edge_entry(student, task),
    }
    if task is Task.DETECT and student is None and detector["model"] in DETECTORS:
        raw["inference"] = {"golden_every": list(GOLDEN_EVERY)}
    return parse_fleet({**raw, **(changes or {})}, "command line", (Path(),))


def _edge_entry(student: str | None, task: Task) -> Mapping[str, object]:
    if task is Task.DETECT:
        return {"task": task, **({} if student is None else _student_entry(student))}
    if student is not None:
        raise UserError(
            f"--student: it is a detector, and --task is {task}; leave one of the two out, or use --task "
            f"{Task.DETECT}"
        )
    return load_fleet(shipped_path(DEFAULT_FLEET)).edge.model_dump()


def _student_entry(student: str) -> Mapping[str, object]:
    name, equals, file = student.partition("=")
    if not equals or Path(student).is_file():
        return {"model": _architecture_of(Path(student)), "weights": student}
    if name not in STUDENTS:
        known = ", ".join(STUDENTS)
        raise UserError(
            f"--student {student}: no student is called '{name}'; use one of {known}, as NAME=FILE"
        )
    return {"model": name, "weights": file}


def _architecture_of(weights: Path) -> str:
    """Returns the architecture that a model of Ekya's names; for other files the usual detector."""
    try:
        with safe_open(weights, framework="numpy") as file:
            metadata: dict[str, str] = file.metadata() or {}
            return metadata.get("architecture", FASTESTDET)
    except (OSError, SafetensorError):
        return FASTESTDET


def _golden_entry(golden: str) -> Mapping[str, object]:
    name, equals, file = golden.partition("=")
    if equals:
        return {"model": name, "weights": file}
    if golden in DETECTORS:
        return {"model": golden}
    return {"model": ONNX, "weights": golden}
