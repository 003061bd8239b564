"""HTML report ``report.html``: a single self-contained file."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ekya.core.units import StreamId
from ekya.results.report import words

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
class SampleCrop:
    """Crop of one object with its classification.

    Attributes:
        stream: its stream.
        caption: for example ``window 3: called car, is truck``.
        png: the crop.
        correct: whether the classification was right.
    """

    stream: StreamId
    caption: str
    png: bytes
    correct: bool


def render_report(
    name: str,
    summary: Mapping[str, Any],
    figures: Sequence[ReportFigure] = (),
    crops: Sequence[SampleCrop] = (),
) -> str:
    """Renders the whole page. All text is escaped, and the page loads nothing from other addresses.

    Args:
        name: of the run.
        summary: as built by ``results.metrics.summary``.
        figures: in the order of the page.
        crops: grouped by stream, otherwise in the given order.
    """
    environment = Environment(
        loader=PackageLoader("ekya.results.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=words.percent,
        share=words.share,
        gamma=words.gamma,
        inference=words.inference,
        points=words.points,
        png=_inlined,
        number=_number,
    )
    by_stream = groupby(sorted(crops, key=lambda crop: crop.stream), key=lambda crop: crop.stream)
    return environment.get_template(_TEMPLATE).render(
        name=name,
        run=summary,
        figures=figures,
        crops=[(stream, list(group)) for stream, group in by_stream],
        host=list(_flat(summary["host"])),
    )


def _inlined(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


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
