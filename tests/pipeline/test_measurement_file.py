"""Tests of measurements on disk: speeds at shares, and self-tests of forward passes."""

from dataclasses import replace

import pytest

from ekya.core.errors import UserError
from ekya.core.speed import CoRun, KindSpeeds, ModelSpeeds, SpeedCurve
from ekya.models.edge.forward import PLAIN, ForwardWay, SelfTest, Tried
from ekya.pipeline.kept_measurements import SELF_TESTS, SPEEDS, self_test_key

BENT = SpeedCurve(((0, 0.0), (500, 0.8), (1000, 1.0)))
MEASURED = ModelSpeeds(KindSpeeds(BENT, (CoRun(2, 1.2),)), KindSpeeds(BENT))
KEY = {"device": "a GPU", "backend": "mps", "model": "resnet18"}
TESTED = SelfTest(
    way=ForwardWay(channels_last=True, packed_for=(6, 32), half="float16"),
    plain_ms=4.0,
    chosen_ms=2.0,
    tried=(Tried(ForwardWay(graphs=True), (), "it failed: no graphs"), Tried(PLAIN, (0.5, 1.0), "")),
    took_s=0.6,
)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ekya"


def test_measurement_file_save_replaces_entry_of_same_key():
    assert SPEEDS.load(KEY) is None
    SPEEDS.save(KEY, MEASURED)
    other = replace(MEASURED, inference=MEASURED.training)
    SPEEDS.save({**KEY, "model": "resnet101"}, other)
    assert SPEEDS.load(KEY) == MEASURED
    assert SPEEDS.load({**KEY, "model": "resnet101"}) == other
    for change in ({"device": "another"}, {"backend": "cpu"}, {"model": "none"}):
        assert SPEEDS.load({**KEY, **change}) is None
    SPEEDS.save(KEY, other)
    assert SPEEDS.load(KEY) == other


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "[1]",
        '[{"device": "a GPU", "backend": "mps", "model": "resnet18"}]',
        '[{"device": "a GPU", "backend": "mps", "model": "resnet18", "speeds": {"training": 1}}]',
    ],
)
def test_measurement_file_damaged_names_file_and_remedy(text, cache):
    cache.mkdir()
    (cache / "speeds.json").write_text(text)
    with pytest.raises(UserError, match=r"speeds.json: holds no measured speeds .*; remove it and run `ekya"):
        SPEEDS.load(KEY)


@pytest.mark.parametrize("text", ["not JSON", "{}", "[3]", '[{"torch": "2.15"}]'])
def test_measurement_file_damaged_self_tests_are_made_again(text, cache):
    cache.mkdir()
    (cache / "forward-passes.json").write_text(text)
    key = self_test_key("cpu", "resnet18", (32, 24))
    assert SELF_TESTS.load(key) is None
    SELF_TESTS.save(key, TESTED)
    assert SELF_TESTS.load(key) == TESTED


def test_measurement_file_unwritable_loses_self_tests_only(cache):
    cache.write_text("a file in place of the folder")
    SELF_TESTS.save({"torch": "2.15"}, TESTED)
    with pytest.raises(UserError, match="ekya"):
        SPEEDS.save(KEY, MEASURED)


def test_measurement_file_path_follows_the_users_cache(monkeypatch, tmp_path):
    assert SPEEDS.path == tmp_path / "ekya" / "speeds.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert SPEEDS.path == tmp_path / ".cache" / "ekya" / "speeds.json"


def test_self_test_key_differs_by_limit_of_instruction_set(monkeypatch):
    for limit in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"):
        monkeypatch.delenv(limit, raising=False)
    free = self_test_key("cpu", "resnet18", (32, 24))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    held = self_test_key("cpu", "resnet18", (24, 32))
    assert free["sides"] == held["sides"]
    assert free != held
    assert held["instruction_set"].endswith("ONEDNN_MAX_CPU_ISA=AVX2")
