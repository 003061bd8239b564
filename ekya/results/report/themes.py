"""Colours of figures and pages."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours as ``#rrggbb``.

    Attributes:
        page: background.
        ink: text.
        quiet: axes, ticks and secondary text.
        line: grid and window borders.
        streams: one per stream; distinguishable with red-green colour blindness.
    """

    page: str
    ink: str
    quiet: str
    line: str
    streams: tuple[str, ...]


LIGHT = Theme(
    page="#ffffff",
    ink="#1c2430",
    quiet="#66707d",
    line="#dfe3e8",
    streams=("#2467a8", "#c9620e", "#2b8a66", "#8a4fa3", "#a83248", "#7a6a12", "#23828f", "#59636f"),
)
DARK = Theme(
    page="#14181f",
    ink="#e8ebef",
    quiet="#98a2ae",
    line="#2c333d",
    streams=("#6aaeee", "#f19a4e", "#5fc49b", "#c48bdb", "#ec7a8d", "#cdbb55", "#60c3d0", "#a9b3bf"),
)


def mix_color(color: str, page: str, strength: float) -> str:
    """Returns the opaque colour of ``color`` at this opacity on the page, so that bands do not mix."""
    parts = [
        round(strength * int(color[i : i + 2], 16) + (1 - strength) * int(page[i : i + 2], 16))
        for i in (1, 3, 5)
    ]
    return "#{:02x}{:02x}{:02x}".format(*parts)
