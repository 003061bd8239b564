"""Tests of actor classes by name: their methods are known, and only the actor's process imports them."""

import inspect
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module

import pytest

from ekya.runtime.actors.actor_kinds import INFERENCE, PREPARATION, RETRAINING, ActorKind

KINDS = (INFERENCE, PREPARATION, RETRAINING)
PATH = ActorKind("pathlib", "PurePosixPath", ("joinpath", "as_posix"))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_methods_of_a_kind_are_the_public_ones_of_its_class(kind):
    loaded = getattr(import_module(kind.module), kind.name)
    public = {name for name, _ in inspect.getmembers(loaded, inspect.isfunction) if not name.startswith("_")}
    assert set(kind.methods) == public


@pytest.mark.parametrize("kind", [PATH, replace(PATH, low_priority=True)])
def test_actor_class_forwards_calls_to_the_real_class(kind):
    made = kind.actor_class("name")("a")
    assert made.joinpath("b").as_posix() == "a/b"
    assert type(made).__name__ == "PurePosixPath"
    assert not hasattr(made, "exists")


def test_priority_after_loading_slowly_is_as_before():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    replace(PATH, low_priority=True).actor_class("name")("a")
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_actor_class_that_cannot_be_loaded_raises_the_cause():
    with pytest.raises(ImportError, match="nowhere"):
        ActorKind("ekya.nowhere", "Nobody", (), low_priority=True).actor_class("name")()


def test_driver_and_scheduler_import_no_torch():
    for module in (
        "ekya.runtime.driver.live",
        "ekya.runtime.driver.planner",
        "ekya.streams.ingest.process_child",
    ):
        said = subprocess.run(
            [sys.executable, "-c", f"import sys, {module}; print('torch' in sys.modules)"],
            check=True,
            capture_output=True,
            text=True,
        )
        assert said.stdout.strip() == "False", module
