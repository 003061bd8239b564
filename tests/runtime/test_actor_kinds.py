"""Tests of actor classes by name: their methods are known, and only the actor's process imports them."""

import inspect
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module

import pytest

from ekya.runtime.actor_kinds import INFERENCE, PREPARATION, RETRAINING, SCHEDULER, ActorKind

KINDS = (INFERENCE, PREPARATION, RETRAINING, SCHEDULER)
PATH = ActorKind("pathlib", "PurePosixPath", ("joinpath", "as_posix"))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_others_call_are_the_public_methods_of_the_class(kind):
    loaded = getattr(import_module(kind.module), kind.name)
    public = {name for name, _ in inspect.getmembers(loaded, inspect.isfunction) if not name.startswith("_")}
    assert set(kind.methods) == public


@pytest.mark.parametrize("kind", [PATH, replace(PATH, patient=True)])
def test_calls_go_to_an_object_of_the_real_class(kind):
    made = kind.actor_class()("a")
    assert made.joinpath("b").as_posix() == "a/b"
    assert type(made).__name__ == "PurePosixPath"
    assert not hasattr(made, "exists")


def test_a_patient_process_is_as_urgent_as_before_once_it_has_loaded():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    replace(PATH, patient=True).actor_class()("a")
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_a_class_that_cannot_be_loaded_says_why():
    with pytest.raises(ImportError, match="nowhere"):
        ActorKind("ekya.nowhere", "Nobody", (), patient=True).actor_class()()


def test_the_driver_and_the_scheduler_do_without_torch():
    for module in ("ekya.runtime.live", "ekya.runtime.planning", "ekya.streams.ingest.process_child"):
        said = subprocess.run(
            [sys.executable, "-c", f"import sys, {module}; print('torch' in sys.modules)"],
            check=True,
            capture_output=True,
            text=True,
        )
        assert said.stdout.strip() == "False", module
