"""The API's routes, each declared once."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from ekya.config.fleet_sections import StreamConfig
from ekya.core.errors import NotThereError, UserError
from ekya.core.weights import Validation
from ekya.service.http.backend import Backend
from ekya.service.http.bodies import (
    CameraTerms,
    EarlierModel,
    FleetTerms,
    MistakeQuery,
    Model,
    NewClass,
    Note,
    SeriesQuery,
    ValidationQuery,
    last_hours,
    models_of,
)
from ekya.service.http.lending import LENDING_ROUTES
from ekya.service.http.route import JSON, Access, Call, Route
from ekya.service.status import CameraStatus, RetrainingRow, Series, ServiceStatus

API = "/api/v1"
JPEG = "image/jpeg"
EVENTS = "text/event-stream"
METRICS = "text/plain"


def _starts_again(what: str) -> Note:
    return Note(f"the service starts again with {what}, and answers again within half a minute")


def _series(backend: Backend, call: Call) -> Series:
    hours = call.values.get("hours")
    return last_hours(backend.series(call.camera), hours, backend.status().now_unix_s)


def _models(backend: Backend, call: Call) -> tuple[Model, ...]:
    serving = backend.status().camera(call.camera).model_version
    return models_of(backend.kept_models(call.camera), serving)


def _picture(backend: Backend, call: Call) -> bytes:
    picture = backend.newest_picture(call.camera)
    if picture is None:
        raise NotThereError(f"camera {call.camera} has no picture yet")
    return picture


def _validation(backend: Backend, call: Call) -> Validation:
    return backend.read_validation(call.camera, call.values["job"]).validation


def _mistake(backend: Backend, call: Call) -> bytes:
    place: int
    pictures, place = (
        backend.read_validation(call.camera, call.values["job"]).pictures,
        call.values.get("place", 0),
    )
    if place >= len(pictures):
        raise NotThereError(f"this retraining has {len(pictures)} pictures of mistakes, counted from 0")
    return pictures[place]


def _newest(backend: Backend, call: Call) -> dict[str, object]:
    message = backend.newest_answer(call.camera)
    if message is None:
        raise NotThereError(f"camera {call.camera} has no answer yet")
    return message


def _waiting(note: str) -> Note | None:
    return Note(note, done=False) if note else None


def _add(backend: Backend, call: Call) -> Note | None:
    # Its keys are checked by the service, which knows the rest of the fleet; only the shape is checked here.
    if not call.values:
        raise UserError("the camera is missing; give it as a stream of the fleet file, with id and source")
    return _waiting(backend.add_camera(call.values))


def _change_fleet(backend: Backend, call: Call) -> Note | None:
    return _starts_again("these GPUs") if backend.change_fleet(call.values) else None


def _add_class(backend: Backend, call: Call) -> Note:
    name = call.values["name"]
    backend.add_class(name)
    return _starts_again(f"the class {name}")


def _read(path: str, name: str, about: str, call: Callable[[Backend, Call], object], answers: Any) -> Route:
    return Route("GET", f"{API}/{path}", name, about, call, answers)


def _change(
    method: str,
    path: str,
    name: str,
    about: str,
    call: Callable[[Backend, Call], Note | None],
    body: type[BaseModel] | None = None,
    may_be_empty: bool = False,
    notes: bool = False,
) -> Route:
    answers, media = (Note, JSON) if notes else (None, "")
    return Route(
        method, f"{API}/{path}", name, about, call, answers, media, body, may_be_empty, access=Access.CHANGE
    )


_CAMERA = "cameras/{camera}"

ROUTES: tuple[Route, ...] = (
    _read(
        "status", "status", "State of the service and of its cameras.", lambda b, _: b.status(), ServiceStatus
    ),
    _read(
        "cameras",
        "cameras",
        "All cameras, sorted by id.",
        lambda b, _: b.status().cameras,
        tuple[CameraStatus, ...],
    ),
    _read(_CAMERA, "camera", "One camera.", lambda b, call: b.status().camera(call.camera), CameraStatus),
    Route(
        "GET",
        f"{API}/{_CAMERA}/series",
        "series",
        "A camera's accuracy and shares over time.",
        _series,
        Series,
        query=SeriesQuery,
    ),
    _read(
        f"{_CAMERA}/retrainings",
        "retrainings",
        "A camera's last retrainings, the oldest first.",
        lambda b, call: b.retrainings(call.camera),
        tuple[RetrainingRow, ...],
    ),
    Route(
        "GET",
        f"{API}/{_CAMERA}/validation",
        "validation",
        "What the models before and after a retraining answered on its validation labels.",
        _validation,
        Validation,
        query=ValidationQuery,
    ),
    Route(
        "GET",
        f"{API}/{_CAMERA}/mistake.jpg",
        "mistake",
        "An object that a retrained model got wrong in its validation.",
        _mistake,
        media=JPEG,
        query=MistakeQuery,
    ),
    _read(
        f"{_CAMERA}/models",
        "models",
        "The models that served a camera, by version.",
        _models,
        tuple[Model, ...],
    ),
    Route(
        "GET",
        f"{API}/{_CAMERA}/picture.jpg",
        "picture",
        "A camera's newest frame with its boxes.",
        _picture,
        media=JPEG,
    ),
    _read(
        f"{_CAMERA}/answer",
        "answer",
        "A camera's newest answer, as it is sent to sinks.",
        _newest,
        dict[str, object],
    ),
    Route(
        "GET",
        f"{API}/events",
        "events",
        "Server-sent events: `status`, once a second, and `answer`, the newest of each camera.",
        None,
        media=EVENTS,
    ),
    _change(
        "POST",
        "cameras",
        "add_camera",
        "Adds a camera, given as a stream of the fleet file; answers when it serves, or why it does not yet.",
        _add,
        StreamConfig,
        notes=True,
    ),
    _change(
        "DELETE",
        _CAMERA,
        "remove_camera",
        "Removes a camera for good.",
        lambda b, call: b.remove_camera(call.camera),
    ),
    _change(
        "PATCH",
        _CAMERA,
        "change_camera",
        "Changes terms of a camera.",
        lambda b, call: b.change_camera(call.camera, call.values),
        CameraTerms,
    ),
    _change(
        "POST",
        f"{_CAMERA}/pause",
        "pause",
        "Stops analysing a camera until it is resumed.",
        lambda b, call: b.pause_camera(call.camera),
    ),
    _change(
        "POST",
        f"{_CAMERA}/resume",
        "resume",
        "Goes on with a paused camera; answers when it serves, or why it does not yet.",
        lambda b, call: _waiting(b.resume_camera(call.camera)),
        notes=True,
    ),
    _change(
        "POST",
        f"{_CAMERA}/freeze",
        "freeze",
        "Keeps a camera's model: no retraining.",
        lambda b, call: b.freeze_model(call.camera, True),
    ),
    _change(
        "POST",
        f"{_CAMERA}/unfreeze",
        "unfreeze",
        "Lets a camera's model be retrained again.",
        lambda b, call: b.freeze_model(call.camera, False),
    ),
    _change(
        "POST",
        f"{_CAMERA}/roll-back",
        "roll_back",
        "Serves a kept model again: of a version, or without a body the one before the one that serves now.",
        lambda b, call: _waiting(b.roll_back(call.camera, call.values.get("version"))),
        EarlierModel,
        may_be_empty=True,
        notes=True,
    ),
    _change(
        "POST",
        f"{_CAMERA}/labels",
        "ask_labels",
        "Has the golden model label a camera now.",
        lambda b, call: b.ask_labels(call.camera),
    ),
    _change(
        "POST",
        f"{_CAMERA}/forget",
        "forget",
        "Deletes the pictures that are kept of a camera, also of a removed one.",
        lambda b, call: b.forget_pictures(call.camera),
    ),
    _change(
        "PATCH",
        "fleet",
        "change_fleet",
        "Changes terms of the fleet.",
        _change_fleet,
        FleetTerms,
        notes=True,
    ),
    _change(
        "POST",
        "classes",
        "add_class",
        "Adds a class, which models learn from their next labels on; the service starts again for it.",
        _add_class,
        NewClass,
        notes=True,
    ),
    *LENDING_ROUTES,
    Route(
        "GET",
        "/metrics",
        "metrics",
        "Metrics in Prometheus' text format.",
        lambda b, _: b.metrics_text(),
        media=METRICS,
        access=Access.METRICS,
    ),
    Route(
        "GET",
        "/healthz",
        "healthz",
        "Whether the service runs and answers: 200, or 503, also while it starts.",
        None,
        dict[str, bool],
        access=Access.OPEN,
    ),
    Route(
        "GET", "/openapi.json", "openapi", "This description.", None, dict[str, object], access=Access.OPEN
    ),
)
"""All routes of the API, in the order of the documentation. The page's own are in ``page``."""
