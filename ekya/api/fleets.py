"""Cameras and fleets as Python objects, and the default models of a fleet that no file describes."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from ekya.config import fleet_reading
from ekya.config.fleet_file import DEFAULT_FLEET, FleetConfig
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.models.catalogue import STUDENT, Role, fetch_model, find_model
from ekya.models.edge.architecture_table import DETECTORS as STUDENTS
from ekya.models.edge.architecture_table import FASTESTDET, NAMES, Task, task_of
from ekya.models.golden.spec import CLASSIFIERS, DETECTORS, FILE, ONNX
from ekya.models.weights_metadata import read_metadata
from ekya.pipeline.trained_card import trained_facts

_LABEL_SUFFIXES = (".parquet", ".csv")

BASE = "base"
"""Name of the shipped base detector as a student."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Camera:
    """A camera, live or recorded.

    Attributes:
        source: URL (``rtsp://``, ``http://`` or ``/dev/videoN``; ``${NAME}`` in it is an environment
            variable), video file, several files that are played one after the other, or a ``SourceSpec`` of
            another package.
        id: its name; None: ``cam-1`` and so on.
        weight: weight of its accuracy in the objective.
        max_age_s: maximum age of its latest result, seconds; None for no limit.
        loop: whether a recording is repeated; only the first pass is scored.
    """

    source: str | Path | Sequence[str | Path] | BaseModel
    id: str | None = None
    weight: float = 1.0
    max_age_s: float | None = None
    loop: bool = False

    @property
    def is_live(self) -> bool:
        """Whether its source is a URL."""
        return isinstance(self.source, str) and ("://" in self.source or self.source.startswith("/dev/video"))

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of a recording; none of a live camera."""
        if self.is_live or isinstance(self.source, BaseModel):
            return ()
        several = [self.source] if isinstance(self.source, str | Path) else self.source
        return tuple(Path(one) for one in several)

    def stream_values(self, number: int) -> Mapping[str, object]:
        """Returns its keys in a fleet file, as the camera of that number."""
        source: Mapping[str, object] = {"kind": "video", "files": self.files}
        if isinstance(self.source, BaseModel):
            source = self.source.model_dump()
        elif self.is_live:
            source = {"kind": "camera", "url": self.source}
        return {
            "id": self.id or f"cam-{number}",
            "source": source,
            "weight": self.weight,
            "max_age_s": self.max_age_s,
            **({"play": {"loop": True}} if self.loop else {}),
        }


@dataclass(frozen=True, slots=True, init=False)
class Fleet:
    """Cameras with their models, and the part of the machine that they may use.

    Attributes:
        config: what a fleet file says, checked; its fields are no part of the stable interface.
    """

    config: FleetConfig

    def __init__(
        self,
        cameras: Sequence[Camera | str | Path],
        *,
        classes: Sequence[str] | None = None,
        golden: str | Path | None = None,
        student: str | Path | None = None,
        task: str = Task.DETECT,
        golden_layout: str | None = None,
        offline: bool = False,
        **keys: object,
    ) -> None:
        """Makes a fleet of cameras; what is left open is chosen for the machine when it runs.

        Args:
            cameras: URLs, video files and ``Camera`` objects.
            classes: names to tell apart; None takes those that occur.
            golden: golden model: a label file, an ONNX file, a name of the catalogue, or ``NAME=FILE``; None
                takes the best one that this machine is fast enough for, which is fetched the first time.
            student: detector that every camera starts with, likewise; None takes ``fastestdet``, and ``base``
                is the shipped one.
            task: ``detect``, or ``classify`` for boxes that the golden detector finds in every frame.
            golden_layout: what a golden detector's ONNX file means, where its answers do not show it.
            offline: fetch no model.
            keys: top-level keys of a fleet file, such as ``gpus=2``, ``window_s=60`` or ``windows=5``.

        Raises:
            UserError: a file or a model is not there, or a value is not possible.
        """
        all_of_them = [one if isinstance(one, Camera) else Camera(one) for one in cameras]
        missing = next((file for one in all_of_them for file in one.files if not file.exists()), None)
        if missing is not None and golden is None:
            # No model is fetched for it.
            raise UserError(f"video {missing}: there is no such file; check the path")
        student, golden = choose_models(student, golden, task, len(all_of_them), offline=offline)
        named = {} if classes is None else {"classes": classes}
        made = make_fleet(all_of_them, golden, {**named, **keys}, student, task, golden_layout)
        object.__setattr__(self, "config", _with_known_classes(made))

    @classmethod
    def of(cls, config: FleetConfig) -> "Fleet":
        """Returns the fleet of a configuration that is checked already."""
        fleet = object.__new__(cls)
        object.__setattr__(fleet, "config", config)
        return fleet


def load_fleet(
    path: str | Path | None = None,
    *,
    golden: str | Path | None = None,
    golden_layout: str | None = None,
    student: str | Path | None = None,
    offline: bool = False,
    **keys: object,
) -> Fleet:
    """Reads a fleet file.

    Args:
        path: the file; None takes the shipped fleet of four rendered cameras.
        golden, golden_layout: golden model in place of the file's, as of ``Fleet``.
        student: model that every camera starts with in place of the file's, likewise, or one that ``ekya edge
            train`` has made.
        offline: fetch no model, and refuse a golden model that would have to be fetched.
        keys: top-level keys that override the file, such as ``gpus=2`` or ``windows=5``.

    Raises:
        UserError: one sentence with file, key and remedy.
    """
    if golden is not None:
        entry = _golden_entry(_file_of(str(golden), Role.GOLDEN, offline=offline))
        keys = {"golden": {**_absolute(entry), "layout": golden_layout}, **keys}
    if student is not None:
        keys = {"edge": _edge_beside(str(student), offline=offline), **keys}
    fleet = fleet_reading.load_fleet(Path(path or shipped_path(DEFAULT_FLEET)), keys)
    if offline:
        _require_golden_here(fleet)
    return Fleet.of(_with_known_classes(fleet))


def _edge_beside(student: str, *, offline: bool) -> Mapping[str, object]:
    """Returns the section ``edge`` in place of a file's."""
    if student == BASE:
        return {"task": Task.DETECT}
    entry = _student_entry(_file_of(student, Role.STUDENT, offline=offline))
    return {**_absolute(entry), "task": task_of(str(entry["model"]))}


def _absolute(entry: Mapping[str, object]) -> Mapping[str, object]:
    """Returns a section with an absolute path: a file's are relative to its folder, and this is not of it."""
    if "weights" not in entry:
        return entry
    return {**entry, "weights": str(Path(str(entry["weights"])).absolute())}


def _with_known_classes(fleet: FleetConfig) -> FleetConfig:
    """Returns the fleet.

    Raises:
        UserError: its golden model does not know one of its classes.
    """
    if fleet.classes is not None:
        # It loads the readers of label files, for which a fleet without classes need not wait.
        from ekya.models.golden.golden_model import require_known_classes

        require_known_classes(fleet.golden, fleet.classes)
    return fleet


def choose_models(
    student: str | Path | None, golden: str | Path | None, task: str, cameras: int, *, offline: bool
) -> tuple[str | None, str]:
    """Returns student and golden detector, in place of names of the catalogue their files.

    Args:
        student, golden: as named; None for the default.
        task: of the edge models.
        cameras: their number, which decides which golden detector is fast enough.
        offline: fetch nothing.

    Raises:
        UserError: a model of the catalogue is not here and cannot be fetched.
    """
    # It loads what measures a detector, for which the reading of a fleet file need not wait.
    from ekya.pipeline.default_models import choose_golden, fetch_student

    if student is None and task == Task.DETECT and (golden is None or STUDENT.is_cached):
        student = fetch_student(offline=offline)
    elif student not in (None, BASE):
        student = _file_of(str(student), Role.STUDENT, offline=offline)
    elif student is None and task == Task.DETECT:
        _LOG.info("student: the shipped base; ekya models fetch %s gets one that detects more", STUDENT.name)
    named = None if student is None else str(student)
    if golden is None:
        return named, str(choose_golden(cameras, offline=offline))
    return named, _file_of(str(golden), Role.GOLDEN, offline=offline)


def make_fleet(
    cameras: Sequence[Camera],
    golden: str | Path,
    keys: Mapping[str, object] | None = None,
    student: str | None = None,
    task: str = Task.DETECT,
    golden_layout: str | None = None,
) -> FleetConfig:
    """Makes one stream of each camera.

    Models that classify are the shipped fleet's. Those that detect start from ``student``, or from the
    shipped base. Sizes are left open: they are chosen for the machine and the number of streams.

    Args:
        cameras: in order.
        golden: a golden model: a label file (.parquet or .csv), an ONNX file, a name, or ``NAME=FILE`` for
            one with weights from a local file.
        keys: top-level keys that override the defaults (windows until the videos end, the classes that
            occur).
        student: detector that every stream starts with: a file of weights, ``NAME=FILE``, or ``BASE``.
        task: of the edge models.
        golden_layout: ``golden.layout``.

    Raises:
        UserError: see ``load_fleet``; or the task is not the student's.
    """
    raw: dict[str, object] = {
        "name": "cameras" if any(camera.is_live for camera in cameras) else "videos",
        "golden": {**_golden_entry(str(golden)), "layout": golden_layout},
        "streams": [camera.stream_values(number) for number, camera in enumerate(cameras, start=1)],
        "edge": _edge_entry(student, task),
    }
    return fleet_reading.parse_fleet({**raw, **(keys or {})}, "the given fleet", (Path(),))


def _edge_entry(student: str | None, task: str) -> Mapping[str, object]:
    if task == Task.DETECT:
        return {"task": task, **({} if student is None or student == BASE else _student_entry(student))}
    if student is not None:
        raise UserError(
            f"student: it is a detector, and the task is {task}; leave one of the two out, or take the task "
            f"{Task.DETECT}"
        )
    return fleet_reading.load_fleet(shipped_path(DEFAULT_FLEET)).edge.model_dump()


def _student_entry(student: str) -> Mapping[str, object]:
    name, equals, file = student.partition("=")
    if not equals or Path(student).is_file():
        return _entry_of_weights(Path(student))
    if name not in NAMES:
        known = ", ".join(STUDENTS)
        raise UserError(f"student {student}: no student is called '{name}'; use one of {known}, as NAME=FILE")
    return {"model": name, "weights": file}


def _entry_of_weights(weights: Path) -> Mapping[str, object]:
    """Returns what a model of Ekya's says of itself; another file is one of the usual detector."""
    side = trained_facts(weights).get("side")
    return {
        "model": read_metadata(weights).get("architecture", FASTESTDET),
        "weights": str(weights),
        **({} if side is None else {"resolution": side}),
    }


def _golden_entry(golden: str) -> Mapping[str, object]:
    if Path(golden).suffix.lower() in _LABEL_SUFFIXES:
        return {"model": FILE, "weights": golden}
    name, equals, file = golden.partition("=")
    if equals:
        return {"model": name, "weights": file}
    if golden in DETECTORS or golden in CLASSIFIERS:
        return {"model": golden}
    return {"model": ONNX, "weights": golden}


def _require_golden_here(fleet: FleetConfig) -> None:
    """Refuses a fleet file whose golden model would be fetched when it is opened.

    Raises:
        UserError: it names no weights, and those of the catalogue are not here.
    """
    model = find_model(fleet.golden.model)
    if fleet.golden.weights is None and model is not None and model.role is not Role.STUDENT:
        fetch_model(model, offline=True)


def _file_of(named: str, role: Role, *, offline: bool) -> str:
    """Returns a model's file in the cache in place of its name in the catalogue, with its architecture."""
    model = find_model(named)
    if model is None or model.role is not role or Path(named).is_file():
        return named
    path = fetch_model(model, offline=offline)
    return f"{named}={path}" if named in DETECTORS or named in STUDENTS else str(path)
