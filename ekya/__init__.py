"""Ekya: continuous learning of video-analytics models on an edge GPU server (NSDI'22).

The names in ``__all__`` are the stable Python interface; each is imported when it is first used.
"""

from importlib import import_module
from types import MappingProxyType

__version__ = "0.2.0.dev0"

_MODULES = MappingProxyType(
    {
        "ekya.api.fleets": ("Camera", "Fleet", "load_fleet"),
        "ekya.api.results": ("Finished", "Report", "StreamSummary", "Summary"),
        "ekya.api.live": ("Run", "start"),
        "ekya.api.playing": ("replay",),
        "ekya.api.comparison": ("Comparison", "compare"),
        "ekya.api.profiling": ("profile",),
        "ekya.api.simulation": ("Simulation", "open_trace", "simulate"),
        "ekya.core.errors": ("UserError",),
        "ekya.core.plan": ("Assignment", "Phase", "Plan"),
        "ekya.core.shares": ("Job", "Work"),
        "ekya.core.view": ("StreamView", "WindowView"),
        "ekya.models.golden.detections": ("Detections", "ObjectDetector", "RunsOn"),
        "ekya.planning.schedulers.allocation": ("choices_by_stream", "fair_shares_milli"),
        "ekya.planning.schedulers.reasons": ("one_phase_plan",),
        "ekya.planning.schedulers.scheduler": ("Needs", "Scheduler"),
        "ekya.service.answers.messages": ("Sink", "SinkSpec"),
        "ekya.simulation.trace.generate": ("generate_trace",),
        "ekya.streams.ingest.frame": ("Frame", "StreamSource", "Truth"),
        "ekya.streams.ingest.process": ("SourceSpec",),
    }
)
"""Stable names by the module that has them. ``__init__.pyi`` has the same with their types."""

_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]  # noqa: PLE0604 -- all of them are texts


def __getattr__(name: str) -> object:
    """Imports what has a name, when it is first used."""
    if name == "testing":  # a module, which needs hypothesis
        return import_module("ekya.testing")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
