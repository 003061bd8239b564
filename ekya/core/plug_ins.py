"""Plug-ins of other packages, found by their entry points.

One is loaded where its name is used, in every process that uses it: processes are given names, not code.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from ekya.core.errors import UserError

_Made = TypeVar("_Made")


class PlugInGroup(StrEnum):
    """Groups of entry points, and what those in it name."""

    SCHEDULERS = "ekya.schedulers"
    """Classes, or functions, that are called without arguments and return a ``Scheduler``."""
    GOLDEN_MODELS = "ekya.golden_models"
    """Functions that open an ``ObjectDetector``, as in ``DETECTORS`` of the golden models."""
    STUDENTS = "ekya.students"
    """Functions without arguments that return the blocks of a classifier's trunk by name, modules of torch,
    and the channels of the last one's output."""
    SOURCES = "ekya.sources"
    """Pydantic models that are a ``SourceSpec``; the name is their ``kind``."""
    SINKS = "ekya.sinks"
    """Pydantic models that are a ``SinkSpec``; the name is their ``kind``."""


@cache  # all packages are searched, which takes tens of milliseconds
def _installed() -> Any:
    return entry_points()


def find_plug_ins(group: PlugInGroup) -> Mapping[str, EntryPoint]:
    """Returns the entry points of a group by name."""
    return {point.name: point for point in _installed().select(group=group)}


def load_plug_in(point: EntryPoint, make: Callable[[Any], _Made]) -> _Made:
    """Returns what ``make`` makes of what an entry point names.

    Raises:
        UserError: it cannot be loaded, or made.
    """
    try:
        return make(point.load())
    except Exception as error:  # whatever the code of others raises
        package = point.dist.name if point.dist else point.value
        what = point.group.removeprefix("ekya.").removesuffix("s").replace("_", " ")
        raise UserError(
            f"{what}: {point.name} of {package} cannot be loaded ({type(error).__name__}: {error}); "
            "correct or remove that package"
        ) from error


def or_plug_in(group: PlugInGroup) -> WrapValidator:
    """Returns what reads a section of an unknown ``kind`` by the plug-in of this name, if there is one."""

    def read(raw: Any, read_known: ValidatorFunctionWrapHandler) -> Any:
        try:
            return read_known(raw)
        except ValidationError as error:
            first = error.errors()[0]
            point = find_plug_ins(group).get(first.get("ctx", {}).get("tag", ""))
            if first["type"] != "union_tag_invalid" or point is None:
                raise
        try:
            model: type[BaseModel] = load_plug_in(point, lambda model: model)
        except UserError as error:
            raise ValueError(str(error)) from error
        return model.model_validate(raw)

    return WrapValidator(read)
