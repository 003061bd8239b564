"""Views of a service for its page: texts and numbers for the templates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TypeVar

from ekya.core.validation import Validation
from ekya.service.status import AuditedAccuracy, CameraStatus, ServiceStatus

UNKNOWN = "–"

OFF = "off"
_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "ok": "ok",
        "stale": "warn",
        "unlabelled": "warn",
        "behind": "warn",
        "restarting": "warn",
        "lost": "bad",
        "set aside": "bad",
    }
)
"""Colours of states; each has a word that says the same."""

_NAMED = 2
"""Number of cameras that are named where some are meant."""

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Overview:
    """Figures over all cameras, as texts.

    Attributes:
        mean: accuracy, weighted.
        healthy, ill: number of cameras that are well, and names of the others.
        retrained, retraining: number and names of cameras that are retrained.
        analysed: part of the frames that λ selected.
        inference_milli, retraining_milli: shares of all cameras.
    """

    mean: str
    healthy: str
    ill: str
    retrained: int
    retraining: str
    analysed: str
    inference_milli: int
    retraining_milli: int


@dataclass(frozen=True, slots=True)
class ConfusionRow:
    """A class in a confusion: number of its objects by answer, and the part that was right, as text."""

    name: str
    counts: tuple[int, ...]
    recall: str


def overview(status: ServiceStatus) -> Overview:
    """Returns the figures over all cameras."""
    cameras = status.cameras
    known = [(one.weight, one.accuracy) for one in cameras if one.state == "serving"]
    weighted = [(weight, accuracy) for weight, accuracy in known if accuracy is not None]
    weight = sum(weight for weight, _ in weighted)
    on = [one for one in cameras if kind_of(one) != OFF]
    ill = [one.id for one in on if kind_of(one) != "ok"]
    retrained = [one.id for one in cameras if one.retraining is not None]
    due = _sum(cameras, lambda one: one.frames_due)
    return Overview(
        percent(sum(weight * accuracy for weight, accuracy in weighted) / weight if weight else None),
        f"{len(on) - len(ill)} of {len(on)}",
        _some_of(ill, "all well"),
        len(retrained),
        "labels are being made" if status.preparing else _some_of(retrained, "no camera"),
        percent(_sum(cameras, lambda one: one.frames_analysed) / due if due else None),
        _sum(cameras, lambda one: one.inference_share_milli),
        _sum(cameras, lambda one: one.retraining_share_milli),
    )


def facts_of(camera: CameraStatus) -> dict[str, str]:
    """Returns what is known of a camera, by name."""
    counts = camera.retrainings
    by = f"at {camera.resolution} px" if camera.resolution else "by the golden detector"
    frames = "every frame" if camera.every == 1 else f"one frame of {camera.every}"
    share = percent(camera.frames_analysed / camera.frames_due) if camera.frames_due else UNKNOWN
    inference = f"{gpus(camera.inference_share_milli)} GPU, {frames} {by}"
    return {
        "Accuracy": percent(camera.accuracy),
        "Audited accuracy": "not known yet" if camera.audited is None else _audit(camera.audited),
        "Model": f"version {camera.model_version}{', frozen' if camera.frozen else ''}",
        "Inference": "none" if camera.every is None else inference,
        "Retraining": f"{gpus(camera.retraining_share_milli)} GPU" if camera.retraining else "none now",
        "Frames analysed": f"{camera.frames_analysed} of {camera.frames_due} ({share})",
        "Scene changes": str(camera.drifts),
        "Retrainings": f"{counts.served} served, {counts.kept} kept the model, {counts.failed} failed",
    }


def window_text(status: ServiceStatus) -> str:
    """Returns which window is open, and when it ends."""
    if status.window < 0:
        return "Starting …"
    left_s = max(0, round((status.window_ends_us - status.now_us) / 1e6))
    return f"Window {status.window} · ends in {left_s // 60}:{left_s % 60:02d}"


def window_part(status: ServiceStatus) -> float:
    """Returns the part of the window that is over, in [0, 1]."""
    whole_us = status.window_ends_us - status.window_opened_us
    over_us = status.now_us - status.window_opened_us
    return round(min(1.0, max(0.0, over_us / whole_us)), 4) if whole_us > 0 else 0.0


def confusion_of(validation: Validation, counts: Sequence[Sequence[int]]) -> list[ConfusionRow]:
    """Returns the rows of a confusion, without the classes of which there was no object.

    Args:
        validation: that has it.
        counts: its ``before`` or ``after``.
    """
    return [
        ConfusionRow(name, tuple(row), percent(row[at] / sum(row)) if name else "")
        for at, (name, row) in enumerate(zip(validation.classes, counts, strict=True))
        if sum(row)
    ]


def percent(part: float | None) -> str:
    """Returns a part in percent."""
    return UNKNOWN if part is None else f"{100 * part:.1f}%"


def gpus(milli: float) -> str:
    """Returns a share in GPUs."""
    return f"{milli / 1000:.2f}"


def state_of(camera: CameraStatus) -> str:
    """Returns the word for how a camera is."""
    word = camera.health if camera.state == "serving" else camera.state
    return "OK" if word == "ok" else word.capitalize()


def kind_of(camera: CameraStatus) -> str:
    """Returns the colour of that word: ``ok``, ``warn``, ``bad`` or ``off``."""
    return _KINDS.get(camera.health if camera.state == "serving" else camera.state, OFF)


def utc(unix_s: float) -> str:
    """Returns a time for browsers in which no script tells the local one."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%d %b %H:%M UTC")


FILTERS: Mapping[str, Callable[..., object]] = MappingProxyType(
    {one.__name__: one for one in (percent, gpus, state_of, kind_of, utc)}
)
"""Functions that templates may use, by name."""


def _audit(audited: AuditedAccuracy) -> str:
    low, high = percent(audited.low), percent(audited.high)
    return f"{percent(audited.accuracy)} ({low} to {high}, {audited.frames} frames)"


def _some_of(names: list[str], none: str) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more or none


def _sum(cameras: Sequence[CameraStatus], of: Callable[[CameraStatus], _Number]) -> _Number:
    return sum(map(of, cameras))
