"""Fleet files with one thing wrong: refused in a sentence, or understood as what is written."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.core.errors import UserError

WRITTEN = """\
name: yard
classes: [person, car]
gpus: 1.5
window_s: 24
windows: 3
golden:
  model: onnx
  weights: golden.onnx
  frames_per_window: 12
inference:
  every: [1, 2, 5]
retraining:
  epochs: [10, 20]
preparation:
  fraction: 0.1
streams:
  - id: gate
    source:
      kind: video
      files: [a.mp4]
    mask: [[0, 0], [1, 0], [1, 0.2]]
    play:
      speed: 2.0
  - id: road
    source:
      kind: synthetic_city
      seed: 3
"""

VALUES = (
    "banana", "-1", "0", "1e999", ".nan", "null", "[]", "[1, 2]", "{a: 1}", "yes", "1_000", "0x10", "1:30",
    "1,5", "'7'", "~", "2030-01-01", "!!python/object:os.system x", "&a 3", "*a",
)  # fmt: skip

Mutation = Callable[[random.Random, list[str]], list[str]]


def keyed(lines: list[str]) -> list[int]:
    return [at for at, line in enumerate(lines) if ":" in line]


def double_key(rng: random.Random, lines: list[str]) -> list[str]:
    at = rng.choice([at for at in keyed(lines) if not lines[at].lstrip().startswith("-")])
    # With its block, if it has one.
    depth = len(lines[at]) - len(lines[at].lstrip())
    end = at + 1
    while end < len(lines) and len(lines[end]) - len(lines[end].lstrip()) > depth:
        end += 1
    return lines[:end] + lines[at:end] + lines[end:]


def misspell_key(rng: random.Random, lines: list[str]) -> list[str]:
    at = rng.choice(keyed(lines))
    key, _, value = lines[at].partition(":")
    other = rng.choice([key + "s", key[:-1], key[:-2] + key[-1] + key[-2], key.upper(), key + "_"])
    return [*lines[:at], f"{other}:{value}", *lines[at + 1 :]]


def indent_line(rng: random.Random, lines: list[str]) -> list[str]:
    at = rng.randrange(len(lines))
    line = lines[at]
    moved = (
        line[1:]
        if line.startswith(" ") and rng.random() < 0.5
        else f"{rng.choice([' ', '  ', chr(9)])}{line}"
    )
    return [*lines[:at], moved, *lines[at + 1 :]]


def change_value(rng: random.Random, lines: list[str]) -> list[str]:
    at = rng.choice([at for at in keyed(lines) if not lines[at].endswith(":")])
    key, _, _ = lines[at].partition(":")
    return [*lines[:at], f"{key}: {rng.choice(VALUES)}", *lines[at + 1 :]]


def cut_short(rng: random.Random, lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    return text[: rng.randrange(1, len(text))].splitlines()


def change_character(rng: random.Random, lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    at = rng.randrange(len(text))
    return (text[:at] + rng.choice("\0\t:-#'\"[]{}&*!|>%@`,é\u2028") + text[at + 1 :]).splitlines()


MUTATIONS: dict[str, Mutation] = {
    made.__name__: made
    for made in (double_key, misspell_key, indent_line, change_value, cut_short, change_character)
}


def differences(one: object, other: object, place: str = "") -> Iterator[str]:
    """Yields the places at which two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from differences(one.get(key), other.get(key), f"{place}.{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for at, (mine, yours) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, yours, f"{place}.{at}")
    elif one != other:
        yield place


def read(folder: Path, text: str) -> FleetConfig:
    (folder / "fleet.yaml").write_text(text, encoding="utf-8")
    return load_fleet(folder / "fleet.yaml")


@pytest.mark.parametrize("kind", MUTATIONS)
@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.long)])
def test_one_mistake_is_refused_or_understood_as_written(tmp_path, kind, count):
    for name in ("golden.onnx", "a.mp4"):
        (tmp_path / name).write_bytes(b"")
    right = read(tmp_path, WRITTEN)
    for seed in range(count):
        lines = MUTATIONS[kind](random.Random(seed), WRITTEN.splitlines())
        text = "\n".join(lines) + "\n"
        try:
            understood = read(tmp_path, text)
        except UserError as error:
            assert "\n" not in str(error), text
            assert str(error).startswith(str(tmp_path / "fleet.yaml")), text
            continue
        assert kind not in {"double_key", "misspell_key"}, text
        # Whatever YAML makes of the text by itself is what a fleet may differ by.
        theirs, ours = yaml.safe_load(text), yaml.safe_load(WRITTEN)
        written = {place.split(".")[1] for place in differences(theirs, ours)}
        got = differences(understood.model_dump(mode="json"), right.model_dump(mode="json"))
        assert {place.split(".")[1] for place in got} <= written, text
