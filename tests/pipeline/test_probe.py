"""Tests of measuring a machine in a separate process: every failure is reported in one sentence."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.core.host import HostCosts, StreamCosts
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.self_test import SelfTest
from ekya.pipeline.host_probe import CostProbe, ProbedHost, keep_host, kept_host

FLEET = """
name: two
classes: [person, car, truck, bus, bicycle, motorcycle]
gpus: 1
window_s: 10
golden: {model: resnext29}
edge: {model: mobilenet_v3_small, resolution: 16}
retraining: {epochs: [4], trainable_blocks: [0, 1], data_fractions: [1.0]}
inference: {every: [1, 2], resolutions: [16, 8]}
streams:
  - id: cam-1
    source: {kind: synthetic_city, seed: 1, fps: 5, duration_s: 4, width: 64, height: 48}
  - id: cam-2
    source: {kind: synthetic_city, seed: 2, fps: 10, duration_s: 4, width: 64, height: 48}
"""


def fleet(tmp_path, text=FLEET):
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    return load_fleet(path)


def running(program):
    """Returns a starter that runs ``program`` as the probe; its last argument is the path of the answer."""

    def start(command, **options):
        return subprocess.Popen([sys.executable, "-c", program, command[-1]], **options)

    return start


def probed(tmp_path, program):
    with CostProbe(fleet(tmp_path), "cpu", 2.0, popen=running(program)) as probe:
        return probe.result()


@pytest.mark.live
@pytest.mark.virtual
def test_probe_measures_a_fleet_and_keeps_the_self_test(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with CostProbe(fleet(tmp_path), "cpu", 2.0, 0) as probe:
        host = probe.result()
    assert host.classes[:2] == ("person", "car")
    assert {stream: costs.fps for stream, costs in host.costs.streams.items()} == {"cam-1": 5, "cam-2": 10}
    for costs in host.costs.streams.values():
        assert costs.frame_gpu_s[16] > costs.finding_gpu_s >= 0
        assert set(costs.frame_gpu_s) == {16, 8}
    assert [cost.family.trainable_blocks for cost in host.costs.families] == [0, 1]
    assert host.costs.label_gpu_s > 0
    assert host.costs.batch_s > 0
    (kept,) = json.loads((tmp_path / "cache" / "ekya" / "forward-passes.json").read_text())
    assert kept["architecture"] == "mobilenet_v3_small"
    told = json.loads(json.dumps(host.summary()))
    assert told["forward"]["way"] == str(host.self_test.way)
    assert told["instruction_set"] == kept["instruction_set"]


@pytest.mark.live
@pytest.mark.virtual
def test_probe_unreadable_weights_are_the_users_error(tmp_path):
    (tmp_path / "broken.safetensors").write_bytes(b"no weights")
    broken = FLEET.replace("resolution: 16}", "resolution: 16, weights: broken.safetensors}")
    with CostProbe(fleet(tmp_path, broken), "cpu", 2.0, 0) as probe, pytest.raises(UserError, match="broken"):
        probe.result()


def test_probe_dead_process_reports_its_last_error(tmp_path):
    with pytest.raises(UserError, match=r"could not be measured \(no torch here\); `ekya doctor`"):
        probed(tmp_path, "raise SystemExit('no torch here')")


def test_probe_invalid_answer_is_reported(tmp_path):
    with pytest.raises(UserError, match="could not be measured"):
        probed(tmp_path, "import sys; open(sys.argv[1], 'w').write('{}')")


def test_probe_takes_no_modules_of_the_current_folder(tmp_path):
    def start(command, **options):
        asked = "import sys; sys.exit(f'safe: {sys.flags.safe_path}')"
        return subprocess.Popen([*command[: command.index("-m")], "-c", asked], **options)

    with (
        CostProbe(fleet(tmp_path), "cpu", 2.0, popen=start) as probe,
        pytest.raises(UserError, match="safe: True"),
    ):
        probe.result()


def test_probe_exit_ends_the_process(tmp_path):
    started = []

    def start(command, **options):
        started.append(running("import time; time.sleep(600)")(command, **options))
        return started[0]

    with CostProbe(fleet(tmp_path), "cpu", 2.0, popen=start):
        assert started[0].poll() is None
    assert started[0].returncode is not None


def test_probe_parent_imports_no_torch():
    program = "import sys, ekya.pipeline.host_probe; sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_probe_passes_the_shipped_fleet_on(tmp_path):
    shipped = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
    program = (
        "import json, sys; order = json.loads(sys.stdin.read()); sys.exit(order['fleet'].splitlines()[0])"
    )
    with (
        CostProbe(shipped, "cpu", 2.0, popen=running(program)) as probe,
        pytest.raises(UserError, match="name: synthetic-city"),
    ):
        probe.result()


@pytest.fixture
def measured(tmp_path):
    """A measurement of a fleet, kept in a file."""
    of = fleet(tmp_path)
    cheap, dear = StreamCosts(5.0, {16: 0.1}), StreamCosts(10.0, {16: 0.3})
    host = ProbedHost(
        of.classes,
        HostCosts({"cam-1": cheap, "cam-2": dear}, 0.01, (), 2.0),
        SelfTest(PLAIN, 1.0, 1.0, (), 0.1),
    )
    keep_host(tmp_path / "host.json", host, of, "cpu")
    return tmp_path / "host.json", host


def test_kept_measurement_is_that_of_the_same_work(tmp_path, measured):
    path, host = measured
    assert kept_host(path, fleet(tmp_path), "cpu") == host


def test_what_was_odd_in_pictures_is_not_said_again_at_a_later_start(tmp_path, measured):
    path, host = measured
    keep_host(path, replace(host, odd=("cam-1: the picture is black",)), fleet(tmp_path), "cpu")
    assert kept_host(path, fleet(tmp_path), "cpu") == host


@pytest.mark.parametrize(
    ("text", "device"),
    [
        (FLEET, "cuda"),
        (FLEET.replace("mobilenet_v3_small", "resnet18"), "cpu"),
        (FLEET.replace("truck, ", ""), "cpu"),
    ],
    ids=["device", "edge model", "classes"],
)
def test_kept_measurement_of_other_work_is_none(tmp_path, measured, text, device):
    assert kept_host(measured[0], fleet(tmp_path, text), device) is None


def test_camera_that_was_added_or_changed_costs_as_the_dearest(tmp_path, measured):
    path, host = measured
    changed = FLEET.replace("seed: 1", "seed: 7").replace("cam-2", "cam-3")
    costs = kept_host(path, fleet(tmp_path, changed), "cpu").costs.streams
    assert costs == dict.fromkeys(("cam-1", "cam-3"), host.costs.streams["cam-2"])


def test_added_class_or_another_label_budget_costs_no_more(tmp_path, measured):
    path, host = measured
    more = fleet(tmp_path, FLEET.replace("motorcycle]", "motorcycle, tram]"))
    known = kept_host(path, more, "cpu")
    assert (known.classes, known.costs) == (more.classes, host.costs)
    budget = fleet(tmp_path, FLEET.replace("model: resnext29", "model: resnext29, labels_per_window: 9"))
    assert kept_host(path, budget, "cpu") == host


@pytest.mark.parametrize("content", ["", "{}", '{"of": 3'])
def test_kept_measurement_that_is_damaged_is_none(tmp_path, content):
    (tmp_path / "host.json").write_text(content)
    assert kept_host(tmp_path / "host.json", fleet(tmp_path), "cpu") is None
