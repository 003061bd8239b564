"""The fleet that a command's options name, and what a fleet must be for the command."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ekya.cli.command import Output
from ekya.cli.options import Clock, split_files, split_names
from ekya.config.fleet_file import DEFAULT_FLEET, FleetConfig
from ekya.config.fleet_reading import load_fleet, parse_fleet, with_play
from ekya.config.run_options import RunOptions, require_end, require_needs
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI, StreamId
from ekya.gpu.backends.registry import choose_backend
from ekya.models.edge.architecture_table import DETECTORS as STUDENTS
from ekya.models.edge.architecture_table import FASTESTDET, NAMES, Task, task_of
from ekya.models.golden.spec import CLASSIFIERS, DETECTORS, FILE, ONNX
from ekya.models.weights_metadata import read_metadata
from ekya.pipeline.trained_card import trained_facts
from ekya.planning.schedulers.registry import make_scheduler
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.credentials import has_password, require_variables

if TYPE_CHECKING:
    from ekya.models.catalogue import Role

_KEYS = {"gpus": "gpus", "window": "window_s", "windows": "windows", "scheduler": "scheduler"}
"""Keys of a fleet file by the option that overrides them; ``--classes`` is another one."""

_OF_VIDEOS = {"golden": "golden", "golden_layout": "golden.layout", "student": "edge", "task": "edge"}
"""Options that make the fleet of videos and cameras, with the keys of a fleet file that do the same.

Golden model and student may also stand beside a fleet file, whose section ``golden`` or ``edge`` they
replace.
"""

_LABEL_SUFFIXES = (".parquet", ".csv")

BASE = "base"
"""Value of ``--student`` for the shipped base detector."""

_NEXT_SEED = 1000

_LOG = logging.getLogger(__name__)


def read_fleet(config: object) -> FleetConfig:
    """Reads the fleet that a command's options name: that of a file, of videos or of cameras.

    Args:
        config: dataclass with options of the command. Those about the fleet, by field, are ``fleet``,
            ``video``, ``camera``, ``golden``, ``golden_layout``, ``student``, ``task``, ``classes``,
            ``speed``, ``loop`` and those in ``_KEYS``.

    Raises:
        UserError: the options contradict each other, or the fleet file is invalid.
    """
    given = {option: value for option, value in vars(config).items() if value is not None}
    changes = {key: given[option] for option, key in _KEYS.items() if option in given}
    if "scheduler" in changes:
        make_scheduler(changes["scheduler"])
    if "classes" in given:
        classes = given["classes"]
        changes = {"classes": classes if classes == "auto" else split_names(classes), **changes}
    if "video" in given or "camera" in given:
        if "cameras" in given:
            raise UserError("--cameras: it repeats rendered cameras; name each --video and --camera itself")
        fleet = _fleet_of({"task": Task.DETECT, **given}, changes)
    else:
        beside = given.keys() & {"golden", "student"} if "fleet" in given else set()
        allowed = {*beside, "golden_layout"} if "golden" in beside else beside
        for option, key in _OF_VIDEOS.items():
            if option in given and option not in allowed:
                one = "one or a fleet file" if option == "golden" else "one"
                raise UserError(
                    f"--{option.replace('_', '-')}: it goes with --video and --camera; name {one}, or set "
                    f"{key}: in the fleet file"
                )
        if "golden" in beside:
            changes = {"golden": _golden_of(given), **changes}
        if "student" in beside:
            changes = {"edge": _edge_of(given), **changes}
        fleet = load_fleet(given.get("fleet") or shipped_path(DEFAULT_FLEET), changes)
        if given.get("offline", False):
            _require_golden_here(fleet)
    if "cameras" in given:
        fleet = repeat_cameras(fleet, given["cameras"])
    if fleet.classes is not None:
        # It loads the readers of label files, for which other commands need not wait.
        from ekya.models.golden.golden_model import require_known_classes

        require_known_classes(fleet.golden, fleet.classes)
    play: dict[str, object] = {option: given[option] for option in ("speed", "loop") if option in given}
    return with_play(fleet, play) if play else fleet


def repeat_cameras(fleet: FleetConfig, count: int) -> FleetConfig:
    """Returns the fleet with this number of cameras: its own in turn, then with other seeds.

    Raises:
        UserError: a camera is not rendered, so that it would show the same again.
    """
    streams = []
    for number in range(count):
        times, place = divmod(number, len(fleet.streams))
        stream = fleet.streams[place]
        if times:
            seed = getattr(stream.source, "seed", None)
            if seed is None:
                raise UserError(
                    f"--cameras: {stream.id} is not rendered, and would show the same again; name its "
                    "copies in the fleet file"
                )
            source = stream.source.model_copy(update={"seed": seed + _NEXT_SEED * times})
            stream = stream.model_copy(update={"id": StreamId(f"{stream.id}-{times + 1}"), "source": source})
        streams.append(stream)
    return fleet.model_copy(update={"streams": tuple(streams)})


def _fleet_of(given: Mapping[str, Any], changes: Mapping[str, object]) -> FleetConfig:
    """Returns the fleet of the given videos and cameras."""
    videos, cameras = given.get("video", ()), given.get("camera", ())
    option = "--video" if videos else "--camera"
    if "fleet" in given:
        raise UserError(f"{option}: {given['fleet']} names the cameras already; use one of the two")
    if any("://" in video for video in videos):
        raise UserError("--video: it names files; give the URL of a camera with --camera")
    # All users of the machine, and the dashboard, see a command line.
    if any(has_password(url) for url in cameras):
        raise UserError(
            "--camera: every user of this machine can see a password on the command line; put it "
            "into an environment variable, say CAM_PASSWORD, and write "
            "'rtsp://user:${CAM_PASSWORD}@host/...' in single quotes"
        )
    files = [split_files(video) for video in videos]
    missing = next((file for camera in files for file in camera if not file.exists()), None)
    if missing is not None and "golden" not in given:
        # No model is fetched for it.
        raise UserError(f"--video {missing}: there is no such file; check the path")
    student, golden = _models_of(given, len(files) + len(cameras))
    layout = given.get("golden_layout")
    return make_fleet_of_videos(files, golden, changes, cameras, student, given["task"], layout)


def _models_of(given: Mapping[str, Any], cameras: int) -> tuple[str | None, str]:
    """Returns student and golden detector, in place of names of the catalogue their files.

    Raises:
        UserError: a model of the catalogue is not here and cannot be fetched.
    """
    from ekya.models.catalogue import STUDENT, Role
    from ekya.pipeline.default_models import choose_golden, fetch_student

    offline = given.get("offline", False)
    student, golden = given.get("student"), given.get("golden")
    if student is None and given["task"] is Task.DETECT and (golden is None or STUDENT.is_cached):
        student = str(fetch_student(offline=offline))
    elif student not in (None, BASE):
        student = _file_of(student, offline, Role.STUDENT)
    elif student is None and given["task"] is Task.DETECT:
        _LOG.info("student: the shipped base; ekya models fetch %s gets one that detects more", STUDENT.name)
    if golden is None:
        return student, str(choose_golden(cameras, offline=offline))
    return student, _file_of(golden, offline, Role.GOLDEN)


def _require_golden_here(fleet: FleetConfig) -> None:
    """Refuses a fleet file whose golden model would be fetched when it is opened.

    Raises:
        UserError: it names no weights, and those of the catalogue are not here.
    """
    from ekya.models.catalogue import Role, fetch_model, find_model

    model = find_model(fleet.golden.model)
    if fleet.golden.weights is None and model is not None and model.role is not Role.STUDENT:
        fetch_model(model, offline=True)


def _file_of(named: str, offline: bool, role: "Role") -> str:
    """Returns a model's file in the cache in place of its name in the catalogue, with its architecture."""
    from ekya.models.catalogue import fetch_model, find_model

    model = find_model(named)
    if model is None or model.role is not role or Path(named).is_file():
        return named
    path = fetch_model(model, offline=offline)
    return f"{named}={path}" if named in DETECTORS or named in STUDENTS else str(path)


def make_fleet_of_videos(
    videos: Sequence[Sequence[Path]],
    golden: str | Path,
    changes: Mapping[str, object] | None = None,
    cameras: Sequence[str] = (),
    student: str | None = None,
    task: Task = Task.DETECT,
    golden_layout: str | None = None,
) -> FleetConfig:
    """Makes one stream per list of files and per URL, from ``cam-1`` on.

    Models that classify are the shipped fleet's. Those that detect start from ``student``, or from the
    shipped base. Sizes are left open: they are chosen for the machine and the number of streams.

    Args:
        videos: for each stream, files that are played one after the other.
        golden: a golden model: a label file (.parquet or .csv), an ONNX file, a name, or ``NAME=FILE`` for
            one with weights from a local file.
        changes: top-level keys that override the defaults (windows until the videos end, the classes that
            occur).
        cameras: URLs of live cameras, see ``CameraSpec``; they come after the videos.
        student: detector that every stream starts with: a file of weights, ``NAME=FILE``, or ``BASE``.
        task: of the edge models.
        golden_layout: ``golden.layout``.

    Raises:
        UserError: see ``load_fleet``; or the task is not the student's.
    """
    sources: list[Mapping[str, object]] = [{"kind": "video", "files": list(files)} for files in videos]
    sources += [{"kind": "camera", "url": url} for url in cameras]
    raw: dict[str, object] = {
        "name": "cameras" if cameras else "videos",
        "golden": {**_golden_entry(str(golden)), "layout": golden_layout},
        "streams": [
            {"id": f"cam-{number}", "source": source} for number, source in enumerate(sources, start=1)
        ],
        "edge": _edge_entry(student, task),
    }
    return parse_fleet({**raw, **(changes or {})}, "command line", (Path(),))


def _edge_entry(student: str | None, task: Task) -> Mapping[str, object]:
    if task is Task.DETECT:
        return {"task": task, **({} if student is None or student == BASE else _student_entry(student))}
    if student is not None:
        raise UserError(
            f"--student: it is a detector, and --task is {task}; leave one of the two out, or use --task "
            f"{Task.DETECT}"
        )
    return load_fleet(shipped_path(DEFAULT_FLEET)).edge.model_dump()


def _student_entry(student: str) -> Mapping[str, object]:
    name, equals, file = student.partition("=")
    if not equals or Path(student).is_file():
        return _entry_of_weights(Path(student))
    if name not in NAMES:
        known = ", ".join(STUDENTS)
        raise UserError(
            f"--student {student}: no student is called '{name}'; use one of {known}, as NAME=FILE"
        )
    return {"model": name, "weights": file}


def _entry_of_weights(weights: Path) -> Mapping[str, object]:
    """Returns what a model of Ekya's says of itself; another file is one of the usual detector."""
    side = trained_facts(weights).get("side")
    return {
        "model": read_metadata(weights).get("architecture", FASTESTDET),
        "weights": str(weights),
        **({} if side is None else {"resolution": side}),
    }


def _edge_of(given: Mapping[str, Any]) -> Mapping[str, object]:
    """Returns the section ``edge`` that ``--student`` names, with a path that any fleet file may hold."""
    from ekya.models.catalogue import Role

    if given["student"] == BASE:
        return {"task": Task.DETECT}
    entry = _student_entry(_file_of(given["student"], given.get("offline", False), Role.STUDENT))
    weights = str(Path(str(entry["weights"])).absolute())
    return {**entry, "task": task_of(str(entry["model"])), "weights": weights}


def _golden_of(given: Mapping[str, Any]) -> Mapping[str, object]:
    """Returns the section ``golden`` that ``--golden`` names, with paths that any fleet file may hold."""
    from ekya.models.catalogue import Role

    entry = _golden_entry(_file_of(given["golden"], given.get("offline", False), Role.GOLDEN))
    weights = {"weights": str(Path(str(entry["weights"])).absolute())} if "weights" in entry else {}
    return {**entry, **weights, "layout": given.get("golden_layout")}


def _golden_entry(golden: str) -> Mapping[str, object]:
    if Path(golden).suffix.lower() in _LABEL_SUFFIXES:
        return {"model": FILE, "weights": golden}
    name, equals, file = golden.partition("=")
    if equals:
        return {"model": name, "weights": file}
    if golden in DETECTORS or golden in CLASSIFIERS:
        return {"model": golden}
    return {"model": ONNX, "weights": golden}


def make_run_options(config: object, fleet: FleetConfig, resume: Path | None = None) -> RunOptions:
    """Returns the options of a run: the fields of the command's config that have their names.

    Args:
        config: dataclass with options of the command.
        fleet: to run.
        resume: folder of the run to resume.
    """
    names = {one.name for one in fields(RunOptions)}
    given = {name: value for name, value in vars(config).items() if name in names}
    return RunOptions(**{**given, "scheduler": fleet.scheduler, "resume": resume})


def fit_to_card(
    fleet: FleetConfig, card: Path | None, overload: bool, output: Output, *, gpus_asked_for: bool
) -> FleetConfig:
    """Fits the sizes of a fleet for virtual time and prints what was given up.

    Args:
        fleet: as read.
        card: cost card; None takes the shipped one.
        gpus_asked_for: whether the command names ``gpus``; without, a GPU's card has one.
        overload: whether not even the coarsest inference of all cameras has to fit.
        output: of the command.

    Raises:
        UserError: the fleet does not fit, or the card is none.
    """
    from ekya.pipeline.costs import fitted_by_card, load_card

    costs = load_card(card)
    if costs.gpu is not None and not gpus_asked_for:
        fleet = fleet.model_copy(update={"gpus": 1.0})
    fleet, gave_up = fitted_by_card(fleet, overload=overload, card=costs)
    for sentence in gave_up:
        output.print_text(f"Given up: {sentence}")
    return fleet


def require_world(fleet: FleetConfig, scheduler: str, clock: Clock, *, endless: bool = False) -> None:
    """Refuses live cameras on virtual time, a run without end, and a scheduler whose needs are not met.

    Such needs are true profiles, weights from other servers in a live run, or a γ outside the fleet's Γ.

    Args:
        fleet: to run.
        scheduler: its scheduler, or another to run it with.
        clock: of the run.
        endless: whether it is a service.

    Raises:
        UserError: names the reason, also if there is no such scheduler.
    """
    if not endless:
        require_end(fleet)
    if clock is Clock.VIRTUAL:
        require_recorded(fleet, "on virtual time")
    require_needs(fleet, scheduler, live=clock is Clock.WALL)


def require_recorded(fleet: FleetConfig, how: str) -> None:
    """Refuses a fleet with live cameras, since their frames cannot be repeated.

    Raises:
        UserError: names the first.
    """
    for stream in fleet.streams:
        if stream.source.live:
            raise UserError(
                f"key 'streams.{stream.id}.source': a live camera cannot be watched {how}, since its frames "
                "come only once; record it with ekya record, or use ekya run without --clock virtual"
            )


def require_credentials(fleet: FleetConfig) -> None:
    """Refuses a fleet whose cameras refer to environment variables that are not set.

    Raises:
        UserError: names the first.
    """
    for stream in fleet.streams:
        for key, url in stream.source.urls.items() if isinstance(stream.source, CameraSpec) else ():
            try:
                require_variables(url)
            except UserError as error:
                raise UserError(f"key 'streams.{stream.id}.source.{key}': {error}") from None


def require_capacity(fleet: FleetConfig, shares: str) -> None:
    """Refuses a live run that wants more GPUs than the machine has.

    Raises:
        UserError: it wants more, or the named share backend does not work here.
    """
    chosen = choose_backend(shares)
    there = chosen.capability.capacity_milli
    if fleet.capacity_milli > there:
        raise UserError(
            f"gpus: {fleet.gpus:g} is more than the {there / FULL_GPU_MILLI:g} that are here "
            f"({chosen.capability.why}); use --gpus {there / FULL_GPU_MILLI:g} or less"
        )
