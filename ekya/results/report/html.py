"""HTML report ``report.html``: a single self-contained file."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ekya.core.units import StreamId
from ekya.results.report import formatting as words

_TEMPLATE = "report.html.j2"


@dataclass(frozen=True, slots=True, eq=False)
class ReportFigure:
    """A figure in the report.

    Attributes:
        title: heading above it.
        caption: description, also used as the alternative text.
        light_png: PNG for a light page.
        dark_png: PNG for a dark page, or None.
    """

    title: str
    caption: str
    light_png: bytes
    dark_png: bytes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ReportPicture:
    """A frame with boxes.

    Attributes:
        title: whose boxes they are.
        caption: what they show, in a few words.
        alt: alternative text.
        jpeg: the picture.
    """

    title: str
    caption: str
    alt: str
    jpeg: bytes


@dataclass(frozen=True, slots=True, eq=False)
class PictureRow:
    """Pictures of one frame, shown side by side under a title."""

    title: str
    pictures: tuple[ReportPicture, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ReportPictures:
    """Pictures of a stream, or the reason why there are none, in one sentence."""

    rows: tuple[PictureRow, ...] = ()
    note: str = ""


def render_report(
    name: str,
    summary: Mapping[str, Any],
    figures: Sequence[ReportFigure] = (),
    pictures: Mapping[StreamId, ReportPictures] = MappingProxyType({}),
) -> str:
    """Renders the whole page. All text is escaped, and the page loads nothing from other addresses.

    Args:
        name: of the run.
        summary: as built by ``results.metrics.summary``.
        figures: in the order of the page.
        pictures: of the streams that have some.
    """
    environment = Environment(
        loader=PackageLoader("ekya.results.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats = (
        words.format_percent,
        words.format_share,
        words.format_gamma,
        words.format_lambda,
        words.format_points,
    )
    environment.filters |= {format_.__name__: format_ for format_ in formats}
    environment.filters |= {"png": _png, "jpeg": _jpeg, "number": _number}
    environment.tests["judged_after_0"] = words.judged_after_0
    return environment.get_template(_TEMPLATE).render(
        name=name,
        run=summary,
        figures=figures,
        pictures=pictures,
        detects=summary["task"] == "detect",
        host=list(_flat(summary["host"])),
    )


def _png(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode()


def _jpeg(image: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(image).decode()


def _number(value: float | None) -> str:
    return words.NONE if value is None else f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Returns nested values as flat lines with joined keys such as ``planning_ms p50``."""
    lines: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += _flat(value, f"{before}{key} ")
        elif isinstance(value, bool | str):
            lines.append((before + key, str(value)))
        elif value is None or isinstance(value, int | float):
            lines.append((before + key, _number(value)))
        else:
            lines.append((before + key, ", ".join(map(str, value))))
    return lines
