"""Numbers and configurations of a summary in words, the same in tables and in the report."""

from collections.abc import Mapping
from typing import Any

from ekya.core.configs import InferenceConfig, RetrainConfig

NONE = "–"
"""Stands where there is nothing to say."""


def percent(value: float | None) -> str:
    """``81.2%``."""
    return NONE if value is None else f"{100 * value:.1f}%"


def share(milli: float) -> str:
    """Part of one GPU: ``25%``, or ``0.5%`` where it is small."""
    return f"{milli / 10:.1f}%" if 0 < milli < 100 and milli % 10 else f"{milli / 10:.0f}%"


def gamma(values: Mapping[str, Any] | None) -> str:
    """The name of a γ as the summary has it."""
    return NONE if values is None else RetrainConfig(**values).name


def inference(values: Mapping[str, Any] | None) -> str:
    """The name of a λ as the summary has it."""
    return NONE if values is None else InferenceConfig(**values).name


def mean_share(windows: list[dict[str, Any]], field: str) -> float:
    """Mean of a share over a stream's windows, in thousandths."""
    return sum(window[field] for window in windows) / len(windows) if windows else 0.0


def points(difference: float | None) -> str:
    """A difference of accuracies in points: ``+12.3``."""
    return NONE if difference is None else f"{100 * difference:+.1f}"
