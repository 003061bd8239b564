import importlib
import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from subprocess import TimeoutExpired

import gpu_check
import pytest
from gpu_check import ITEMS, main
from gpu_check_card import FREE, MACHINE, PREPARING, RENDERING, TRAINING, make_card
from gpu_check_costs import fit_line, of_cost
from gpu_check_mps import check_mps
from gpu_check_process import Finding, Item, Rig, run_item
from gpu_check_run import fleet_of, of_pairs, of_run
from gpu_check_shares import CAPPED, GREEN, of_server, of_trainers
from hypothesis import given
from hypothesis import strategies as st

from ekya.pipeline.costs import load_card

SCRIPT = """
import sys
from pathlib import Path
from gpu_check_process import Item, Rig, work_off
sys.exit(work_off(Item("one", "body", "measure", 1.0), Rig(Path(sys.argv[4]))))
"""
BODY = "import os, subprocess, time\nfrom gpu_check_process import Finding\ndef measure(rig):\n    "
FINE = Finding("speed", "0.48", "0.479", True, {"sms": 64})


def of_body(tmp_path, monkeypatch, body, **how):
    """Runs an item with this body, and returns its findings."""
    (tmp_path / "body.py").write_text(BODY + body)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    item = Item("one", "body", "measure", 60.0)
    return run_item(item, Rig(tmp_path / "out"), item.limit_s, tmp_path / "script.py", **how)


def test_item_that_fails_keeps_its_findings_and_tells_where(tmp_path, monkeypatch):
    fine, failed = of_body(
        tmp_path, monkeypatch, "yield Finding('a', '1', '2', True, {'n': 3}); raise ValueError('no level')"
    )
    assert (fine.name, fine.met, fine.figures, fine.item) == ("a", True, {"n": 3}, "one")
    assert failed.measured == "it ended with 1; ValueError: no level"
    assert any("in measure" in line for line in failed.figures["log"])


def test_item_that_hangs_is_ended_with_its_children_and_tells_where(tmp_path, monkeypatch):
    def wait(process, limit_s):
        while not (tmp_path / "child").exists():
            assert process.poll() is None
        raise TimeoutExpired("one", limit_s)

    body = f"""yield Finding('a', '1', '2', True)
    own = subprocess.Popen(['sleep', '600'])
    open({str(tmp_path / "new")!r}, 'w').write(str(own.pid))
    os.rename({str(tmp_path / "new")!r}, {str(tmp_path / "child")!r})
    time.sleep(600)"""
    fine, hung = of_body(tmp_path, monkeypatch, body, wait=wait)
    assert fine.name == "a"
    assert hung.measured.startswith("it had not ended after 60 s")
    assert any("body.py" in line and "in measure" in line for line in hung.figures["log"])
    state = Path("/proc") / (tmp_path / "child").read_text() / "stat"
    assert not state.exists() or state.read_text().split()[2] == "Z"


def told_of(out):
    return [(one["item"], one["met"]) for one in json.loads((out / "findings.json").read_text())["findings"]]


def test_check_writes_after_each_item_and_resumes_where_it_was_stopped(tmp_path, capsys):
    items, limits = [Item(name, "", "", 10.0) for name in "abc"], []
    stops = {"b"}

    def run(item, rig, limit_s):
        if item.name in stops:
            assert told_of(tmp_path) == [("a", False)]
            raise KeyboardInterrupt
        limits.append(limit_s)
        return [replace(FINE, item=item.name, met=item.name != "a")]

    ticks = count(step=4.0)
    arguments = ["--rehearse", "--out", str(tmp_path)]
    assert main(arguments, items, run, lambda: next(ticks)) == gpu_check.STOPPED
    assert "goes on with b" in capsys.readouterr().err
    stops.clear()
    assert main([*arguments, "--resume"], items, run, lambda: next(ticks)) == gpu_check.UNMET
    assert told_of(tmp_path) == [("a", False), ("b", True), ("c", True)]
    assert main([*arguments, "--only", "b"], items, run, lambda: next(ticks)) == gpu_check.UNMET
    assert told_of(tmp_path) == [("a", False), ("c", True), ("b", True)]
    # Ten times an item's time and what the one before has left, less 4 s for each look at the clock.
    assert limits == [96.0, 96.0, 192.0, 96.0]
    assert load_card(tmp_path / "card.json").gpu is not None


def test_check_without_gpu_says_so_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_check.torch.cuda, "is_available", lambda: False)
    assert main(["--out", str(tmp_path / "out")]) == gpu_check.NO_GPU
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_items_are_there_and_fit_the_time():
    assert sum(item.limit_s for item in ITEMS) <= 460
    for item in ITEMS:
        assert callable(getattr(importlib.import_module(item.module), item.function))


@given(st.floats(0.01, 10), st.floats(0.0001, 1))
def test_a_line_is_found_again(a, b):
    counts = [1, 2, 4, 8, 16]
    assert fit_line(counts, [a + b * n for n in counts]) == pytest.approx((a, b), rel=1e-3, abs=1e-6)
    assert min(fit_line(counts, [b * n * n for n in counts])) >= 0
    assert fit_line(counts, [a / n for n in counts])[1] == 0


def times(n, gpu_ms, wall_ms=None):
    return {"n": n, "gpu_ms": gpu_ms, "wall_ms": wall_ms or gpu_ms, "host_ms": 0.1}


ROWS = {"eager": [times(6, 1.3), times(96, 3.75)], "graph": [times(6, 0.59), times(96, 0.74)]}


def test_a_cost_is_met_if_there_is_a_graph_and_no_gap():
    found = of_cost("resnet18", 10, ROWS, {"half graph": "its answers are others"})
    assert found.met and "half graph refused" in found.measured
    gap = {**ROWS, "graph": [times(6, 0.59, 0.8)]}
    assert not of_cost("resnet18", 10, gap, {}).met
    assert not of_cost("resnet18", 10, {"eager": ROWS["eager"]}, {"graph": "no"}).met
    assert of_cost("a detector", 10, {"eager": ROWS["eager"]}, {}).met


def trained(images_per_s, step_s=0.01):
    return {"images_per_s": images_per_s, "step_s": step_s, "host_s": 0.001}


TRAINERS = of_trainers(
    "resnet18",
    {
        FREE: {1: [trained(1000.0)], 2: [trained(900.0)] * 2},
        CAPPED: {2: [trained(600.0)] * 2, 4: [trained(650.0)] * 4},
    },
    trained(2000.0, 0.022),
    "",
)


def served(late, p99_ms, batch_ms=1.0):
    row = {"due": 100, "late": late, "p50_ms": 1.0, "p99_ms": p99_ms, "batch_ms": batch_ms}
    return {**row, "images_per_s": 10.0}


def test_green_contexts_should_come_back_only_if_they_help():
    rows = {"alone": served(0, 2.0), FREE: served(9, 40.0), CAPPED: served(2, 20.0, 1.25)}
    frames, green = of_server("resnet18", {**rows, GREEN: served(0, 10.0)}, "", "")
    assert (frames.met, green.met) == (True, False)
    _, green = of_server("resnet18", {**rows, GREEN: served(0, 19.0)}, "", "")
    assert green.met
    frames, green = of_server("resnet18", {"alone": rows["alone"], FREE: rows[FREE]}, "no MPS", "too old")
    assert (frames.met, green.met, green.measured) == (False, None, "not offered: too old")


def test_a_card_is_of_what_was_measured_and_says_of_the_rest_that_it_is_assumed(tmp_path):
    figures = {
        MACHINE: {"gpu": "a GPU", "cores": 8.0},
        RENDERING: {"host_ms": 3.0},
        PREPARING: {"host_ms": 0.5},
    }
    findings = [Finding(name, "", "", True, of) for name, of in figures.items()]
    findings += [TRAINERS, of_cost("resnet18", 10**9, ROWS, {})]
    rows = {"alone": served(0, 2.0), FREE: served(9, 40.0), CAPPED: served(2, 20.0, 1.25)}
    findings += of_server("resnet18", rows, "", "")
    make_card(findings).save(tmp_path / "card.json")
    card = load_card(tmp_path / "card.json")
    assert card.device == "a GPU"
    assert card.inference_ops_per_s == pytest.approx(1e9 * 90 / 0.15e-3)
    assert card.batch_inference_ops_per_s == pytest.approx(1e9 * 96 / 3.75e-3)
    # 48 images more take 12 ms more.
    assert card.training_step_s == pytest.approx(0.006)
    assert card.gpu.pass_s == pytest.approx(0.58e-3)
    assert card.gpu.training_speed == ((0, 0.0), (250, 0.6), (500, 0.6), (1000, 1.0))
    assert (card.gpu.cores, card.gpu.reading_s, card.gpu.frame_s) == (8.0, 0.003, 0.0005)
    assert card.gpu.beside_training == 0.8
    assert card.gpu.first is None
    assumed = {key for key, text in card.gpu.found.items() if text.startswith("assumed: ")}
    assert assumed == {"golden_ops_per_s", "detector_ops_per_s", "planning_us"}
    names = {one.name for one in findings}
    measured = set(card.gpu.found) - assumed
    assert {card.gpu.found[key].removeprefix("measured: docs/gpu_check.json, ") for key in measured} <= names


def test_a_card_without_findings_is_assumed():
    found = make_card([replace(FINE, name=TRAINING.format("resnet18"), met=None)]).gpu.found
    assert all(text.startswith("assumed: as on an H200") for text in found.values())


def test_a_run_is_met_by_the_frames_that_were_due():
    frames = {"arrived": 200, "due": 100, "analysed": 95, "lost": 0, "late_host": 5, "late_gpu": 0}
    summary = {"scheduler": "ekya", "streams": {"cam-1": {}}, "host": {}, "mean_accuracy": 0.7}
    summary |= {"frames": frames, "retrainings": {"started": 2, "finished": 2, "failed": 0}}
    assert of_run(summary).met
    assert not of_run(summary | {"frames": frames | {"analysed": 94}}).met
    assert not of_run(summary | {"frames": frames | {"lost": 1}}).met
    late = summary | {"retrainings": {"started": 2, "finished": 1, "failed": 0}}
    assert not of_run(late).met
    assert of_run(late | {"scheduler": "uniform"}).met


@pytest.mark.parametrize(("behind", "met"), [([-0.02, 0.0, -0.01], True), ([-0.2, -0.21, -0.19], False)])
def test_ekya_may_be_behind_by_two_standard_errors_of_the_pairs(behind, met):
    def of(accuracies):
        return {f"cam-{at}": {"mean_accuracy": value} for at, value in enumerate(accuracies)}

    found = of_pairs({"ekya": of([0.5 + one for one in behind] + [None]), "uniform": of([0.5] * 4)})
    assert found.met is met
    assert "3 pairs" in found.measured


def test_fleet_has_the_cameras_and_drift_in_the_first_window():
    fleet = fleet_of(9)
    assert (len(fleet.streams), fleet.windows, fleet.processes) == (9, 2, "gpu")
    assert len({stream.source.seed for stream in fleet.streams}) == 9
    assert 0 < fleet.streams[0].source.scenes[1].at_s < fleet.window_s


CLIENT = """
import os, sys
from itertools import count
from pathlib import Path
for number in count():
    try:
        (Path(os.environ["FOLDER"]) / str(number)).mkdir()
        break
    except FileExistsError:
        pass
print("full" if 3 <= number < 7 else "ok", flush=True)
if sys.stdin.readline() == "fault\\n":
    print("0 0 0 0 0 700", flush=True)
"""


def test_clients_are_counted_until_one_is_refused_and_a_fault_heals(tmp_path, monkeypatch):
    script, folder = tmp_path / "client.py", tmp_path / "clients"
    script.write_text(CLIENT)
    folder.mkdir()

    class Clients:
        def __enter__(self):
            return {"FOLDER": str(folder)}, ""

        def __exit__(self, *_):
            return None

    monkeypatch.setattr("gpu_check_mps.mps_clients", Clients)
    counted, healed = check_mps(Rig(tmp_path), script, 5)
    assert (counted.met, counted.figures) == (False, {"clients": 3})
    assert counted.measured == "3 of 5; others: full"
    # The first two after the fault are refused as well.
    assert healed.met
    assert (folder / "7").exists()
    assert healed.figures["results"] == "0 0 0 0 0 700"


@pytest.mark.live
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_rehearsal_ends_every_item_and_gives_a_card(tmp_path):
    main(["--rehearse", "--out", str(tmp_path)])
    findings = json.loads((tmp_path / "findings.json").read_text())["findings"]
    assert {one["item"] for one in findings} == {item.name for item in ITEMS}
    assert [one["measured"] for one in findings if "log" in one["figures"]] == []
    card = load_card(tmp_path / "card.json")
    assert card.gpu.count_found()[0] >= 10
    assert len(list(tmp_path.glob("runs/*/journal.jsonl"))) == 3
