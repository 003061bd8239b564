"""What chaos.py notices of a service, the faults that it knows, and what soak.py makes of a day."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from itertools import islice
from types import SimpleNamespace

import chaos_blows
import chaos_faults
import chaos_run
import chaos_surroundings
import chaos_terms
import psutil
import pytest
import soak
from chaos_checks import Answers, frames_wrong, journal_wrong
from chaos_surroundings import Clock
from chaos_terms import Terms, terms_wrong
from mosquitto import Received
from script import OPTIONS
from soak_facts import Cut, Sample, backs, median, slowest
from street import row
from whole_runs import run

from ekya.config.fleet_sections import RetentionConfig
from ekya.core.errors import UserError
from ekya.results.storage.hour_tables import HourWriter
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.segmented_journal import SegmentedJournal, list_segments
from ekya.service.retention import remove_surplus


@pytest.fixture
def sink(tmp_path):
    """Writes answers with these ids, and reads them."""
    answers = Answers(tmp_path / "answers.jsonl")

    def read(*ids, deaths=0):
        with answers.path.open("a") as file:
            file.writelines(json.dumps({"id": one}) + "\n" for one in ids)
        return list(answers.read(deaths))

    return read


def test_answers_in_order_are_well(sink):
    assert sink("cam-1/1", "cam-2/1", "cam-1/2") == []
    assert sink("cam-2/5", "cam-1/3") == []


def test_answer_that_comes_twice_is_wrong_unless_the_service_died(sink):
    assert sink("cam-1/1", "cam-1/2", "cam-2/2") == []
    assert sink("cam-1/1", "cam-1/2", "cam-1/3", "cam-2/2", deaths=1) == []
    (said,) = sink("cam-1/3", deaths=1)
    assert "cam-1/3 came after cam-1/3" in said


def test_line_that_was_cut_off_is_read_when_it_is_whole(sink, tmp_path):
    sink("cam-1/1")
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write('{"id": "cam')
    assert sink() == []
    assert len(sink("cam-1/2")) == 1, "no answer"


def test_terms_that_are_not_as_asked_for_are_named():
    camera = {"id": "cam-1", "state": "serving", "frozen": False, "weight": 1.0}
    told = {"cameras": [camera, {**camera, "id": "cam-2", "state": "paused"}]}
    assert list(terms_wrong(told, {"cam-1": Terms(), "cam-2": Terms(paused=True)})) == []
    said = list(terms_wrong(told, {"cam-1": Terms(frozen=True, weight=2.0), "cam-2": Terms()}))
    assert said == [
        "cam-1 is not frozen",
        "cam-1 has weight 1.0, asked for was 2.0",
        "cam-2 is paused, asked for was none",
    ]
    assert "asked for were ['cam-1']" in next(iter(terms_wrong(told, {"cam-1": Terms()})))


def test_same_seed_deals_same_faults_and_every_kind_dies():
    dealt = list(islice(chaos_faults.deck(random.Random(3)), 57))
    assert dealt == list(islice(chaos_faults.deck(random.Random(3)), 57))
    alone = {fault.kinds[0] for fault in dealt if fault.what == "kill" and len(fault.kinds) == 1}
    assert alone == set(chaos_faults.KINDS)
    assert {fault.what for fault in dealt} == {*chaos_faults.PARTS, *chaos_faults.WHOLE}


def test_fault_that_cannot_be_done_here_is_not_dealt():
    dealt = islice(chaos_faults.deck(random.Random(3), {"full", "camera"}), 100)
    assert not {"full", "camera"} & {fault.what for fault in dealt}


def test_every_fault_can_be_done():
    assert set(chaos_blows.DONE) == {*chaos_faults.PARTS, *chaos_faults.WHOLE}


@pytest.mark.parametrize(
    "text",
    ["kill:raylet", "hang:decoder", "kill:spare+inference", "restart", "power", "term:swap", "camera:cut"],
)
def test_fault_is_read_from_its_name(text):
    assert str(chaos_faults.Fault.of(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "kill",
        "kill:supervisor",
        "power:raylet",
        "burn:raylet",
        "camera:cut+size",
        "kill:spare+raylet+service",
    ],
)
def test_unknown_fault_is_refused(text):
    with pytest.raises(UserError, match="--faults"):
        chaos_faults.Fault.of(text)


class OfKinds:
    """A service with a process, of another program, of each of these kinds."""

    def __init__(self, tmp_path, *kinds):
        self.runs = RunFolder(tmp_path)
        self.running = {kind: subprocess.Popen(["sleep", "60"]) for kind in kinds}

    def by_kind(self):
        found = {kind: [] for kind in chaos_faults.KINDS}
        for kind, process in self.running.items():
            if process.poll() is None:
                found[kind] = [psutil.Process(process.pid)]
        return found

    def status(self):
        return {"cameras": []}

    def restarts(self):
        return 0


@pytest.fixture
def struck(tmp_path, monkeypatch):
    """``struck(fault, *kinds)`` does a fault to a service that has processes of these kinds."""
    monkeypatch.setattr(chaos_run, "_THERE_S", 0.0)
    services = []

    def strike(fault, *kinds):
        service = OfKinds(tmp_path, *kinds)
        services.append(service)
        chaos = chaos_run.Chaos(service, Answers(tmp_path / "answers.jsonl"), random.Random(1), 1.0, {})
        monkeypatch.setattr(chaos_run.FleetTerms, "change", lambda terms, failed: iter(()))
        return chaos.strike(chaos_faults.Fault.of(fault)), {k: one.pid for k, one in service.running.items()}

    yield strike
    for service in services:
        for process in service.running.values():
            process.kill()
            process.wait()


def test_victims_of_a_fault_are_named_and_kinds_that_have_none(struck):
    outcome, pids = struck("kill:spare+raylet", "raylet", "service")
    assert outcome.victims == (("raylet", pids["raylet"]),)
    assert (outcome.fault, outcome.noted) == ("kill:spare+raylet", "no process of spare")
    assert f"hit raylet {pids['raylet']}" in chaos_faults.line(1, outcome)
    assert outcome.failed == ()
    assert chaos_faults.killed([outcome, outcome]) == 2


def test_another_kind_is_hit_where_the_kind_of_a_fault_has_no_process(struck):
    outcome, pids = struck("kill:spare", "scheduler")
    assert (outcome.fault, outcome.victims) == ("kill:scheduler", (("scheduler", pids["scheduler"]),))
    assert outcome.noted == "no process of spare for kill:spare"


def test_fault_that_reaches_nothing_fails(struck):
    outcome, _ = struck("kill:spare")
    assert outcome.failed == ("done: it reached no process",)
    assert chaos_faults.killed([outcome]) == 0


@pytest.fixture
def serving(tmp_path):
    """A service with a journal and a camera; each request of labels brings the next of ``commands``."""
    folder = RunFolder.create_numbered(tmp_path, "run")
    folder.journal.write_text("{}\n")
    asked = []

    class Serving:
        runs, commands = folder, iter(())

        def status(self):
            return {"cameras": [{"id": "cam-1", "state": "serving", "frozen": False}]}

        def change(self, method, path):
            asked.append(path)
            line = {"commands": [{"kind": one} for one in next(self.commands)]}
            later = threading.Timer(0.1, lambda: folder.journal.open("a").write(json.dumps(line) + "\n"))
            later.start()

        def start(self):
            asked.append("start")

    return Serving(), asked


def term(service, kind="swap"):
    failed = []
    fault = chaos_faults.Fault("term", (kind,))
    around, chance = chaos_surroundings.Surroundings(), random.Random(1)
    blow = chaos_blows.Blow(fault, service, around, (), chance, time.sleep, lambda failed: None, failed)
    blow.strike()
    return failed


@pytest.mark.parametrize(("comes", "asked_for"), [(1, 1), (3, 3)])
def test_labels_are_asked_for_until_the_moment_of_a_stop_comes(serving, monkeypatch, comes, asked_for):
    monkeypatch.setattr(chaos_blows, "_MOMENT_S", 0.4)
    service, asked = serving
    service.commands = iter([["BeginPreparation"]] * (comes - 1) + [["ServeModel"]])
    assert term(service) == []
    assert asked == ["cameras/cam-1/labels"] * asked_for + ["start"]


def test_stop_whose_moment_does_not_come_fails(serving, monkeypatch):
    monkeypatch.setattr(chaos_blows, "_MOMENT_S", 0.2)
    service, asked = serving
    service.commands = iter([[]] * 3)
    (said,) = term(service)
    assert said.startswith("done: no ServeModel came")
    assert asked[-1] == "start"


def test_camera_is_unfrozen_for_a_retraining_where_all_are_frozen(tmp_path):
    changes = []
    service = SimpleNamespace(change=lambda method, path: changes.append(path))
    cameras = {"cam-1": Terms(frozen=True), "cam-2": Terms(paused=True)}
    terms = chaos_terms.FleetTerms(service, random.Random(1), cameras)
    assert list(terms.retrainable(chaos_faults.Fault("restart"), [])) == []
    retraining = chaos_faults.Fault("term", ("retraining",))
    assert list(terms.retrainable(retraining, [])) == ["unfreeze cam-1"]
    assert changes == ["cameras/cam-1/unfreeze"]
    assert list(terms.retrainable(retraining, [])) == [], "one can be retrained"


def test_lost_frames_and_answers_are_named(tmp_path):
    folder = RunFolder(tmp_path)
    writer = HourWriter(folder.hours("cam-1"))
    for frame in (0, 1, 2, 5):
        writer.add_row(row(frame, analysed=True))
    writer.close()
    ids = {"cam-1/0", "cam-1/1", "cam-1/2"}
    assert list(frames_wrong(folder, {*ids, "cam-1/5"}, ())) == []
    assert list(frames_wrong(folder, ids, {"cam-1"})) == [
        "frames: cam-1 has 1 gaps on disk",
        "frames: 1 answers of cam-1 are on disk and not in the sink",
    ]


def test_every_segment_of_a_journal_that_was_written_since_is_checked(tmp_path):
    folder = RunFolder.create_numbered(tmp_path, "run")
    journal = SegmentedJournal(folder, "thief", OPTIONS, segment_bytes=1)
    run("thief", options=OPTIONS, journal=journal)
    journal.close()
    assert len(list_segments(folder)) > 3
    assert journal_wrong(folder) == []
    path = folder.journal_segment(1)
    lines = path.read_text().splitlines()
    last = max(n for n, line in enumerate(lines) if json.loads(line).get("commands"))
    lines[last] = json.dumps({**json.loads(lines[last]), "commands": []})
    path.write_text("\n".join(lines))
    (said,) = journal_wrong(folder)
    assert said.startswith("replay: ")
    assert path.name in said
    os.utime(path, (1000.0, 1000.0))
    assert journal_wrong(folder, 999.0) == [said]
    assert journal_wrong(folder, 1001.0) == []


def test_clock_of_a_process_is_set_off_and_it_sleeps_as_long_as_it_should(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler on this machine; apt-get install gcc")
    clock = Clock.of(tmp_path / "clock")
    clock.set_off(3600)
    code = (
        "import time, pathlib; before, after = map(pathlib.Path, ('before', 'after')); before.touch(); "
        "time.sleep(0.2); after.touch(); print(time.strftime('%s'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **clock.environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (tmp_path / "later").touch()
    # The clock of files is the kernel's, which stays as it is.
    before_s, after_s, later_s = ((tmp_path / at).stat().st_mtime for at in ("before", "after", "later"))
    assert after_s - before_s > 0.15
    assert int(after_s) <= int(done.stdout) - 3600 <= later_s


UP_S = 1000.0
CUT = Cut("cam-1", UP_S - 10.0, UP_S)


def received(*times):
    """Answers, each with the times of its frame and of its receipt, counted from the camera's return."""
    one = Received()
    for frame, (frame_s, received_s) in enumerate(times):
        one.add(frame, UP_S + frame_s, UP_S + received_s)
    return {"cam-1": one}


def test_return_is_the_receipt_of_an_answer_to_a_frame_from_after_it():
    (row,) = backs([CUT], [], received((-11.0, 0.5), (2.0, 4.5), (2.1, 4.0)))
    assert (row["back_s"], row["frame_s"], row["left_out"]) == (4.0, 2.0, False)


def test_return_is_counted_from_the_end_of_a_fault_beside_it():
    faults = [("", UP_S + 1.0, UP_S + 30.0), ("cam-2", UP_S, UP_S + 90.0)]
    (row,) = backs([CUT], faults, received((-11.0, -10.0), (31.0, 33.0)))
    assert (row["back_s"], row["frame_s"], row["left_out"]) == (3.0, 1.0, False)


def test_return_before_the_end_of_a_fault_is_left_out_and_one_that_never_comes_is_not():
    fault = [("", UP_S + 1.0, UP_S + 30.0)]
    (row,) = backs([CUT], fault, received((2.0, 4.0), (31.0, 31.5)))
    assert (row["back_s"], row["left_out"]) == (None, True)
    (row,) = backs([CUT], fault, received((-11.0, 0.5)))
    assert (row["back_s"], row["left_out"]) == (None, False)
    assert slowest([1.0, row["back_s"]]) == median([row["back_s"]]) == float("inf")


@pytest.mark.parametrize(("seconds", "expected"), [([], 0.0), ([1.0, 3.0, 2.0], 2.0)])
def test_median_of_returns(seconds, expected):
    assert median(seconds) == expected


@pytest.fixture
def day(tmp_path):
    """A day of a service whose folder has weights of 67 MB, and the past of ``fill``."""
    folder = RunFolder(tmp_path)
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / "0.safetensors").open("wb") as file:
        file.truncate(67_000_000)
    (tmp_path / "starts.jsonl").touch()
    soak.fill(tmp_path / "logs")
    consumer = SimpleNamespace(cameras=dict)
    return soak.Day(SimpleNamespace(service=SimpleNamespace(runs=folder), outcomes=[]), (), consumer)


def test_past_is_removed_until_the_folder_is_within_its_limit(day):
    now_s = iter((100.0, 140.0, 150.0))
    day.now_s = lambda: next(now_s)
    day.watch_disk()
    day.watch_disk()
    assert day.over_s == 40.0
    folder = day.chaos.service.runs
    remove_surplus(folder, RetentionConfig(days=1, gigabytes=soak.RETENTION_GB))
    day.watch_disk()
    assert day.over_s == 40.0
    assert soak.past_removed(folder.path) == 57


def said_of(day, ray_mb=20.0):
    day.samples[:] = [Sample(700.0, 3000.0, 17, 590.0, ray_mb)]
    return list(soak.wrong(day, [], {}, 600.0))


def test_folder_that_stays_too_large_and_logs_of_ray_are_named(day):
    assert [one.split(":")[0] for one in said_of(day)] == ["disk"], "nothing was removed"
    (day.chaos.service.runs.path / "logs" / "past.jsonl.7").unlink()
    assert said_of(day) == []
    assert said_of(day, ray_mb=301.0) == ["Ray: 301 MB of logs"]
    assert said_of(day, ray_mb=0.0) == ["Ray: 0 MB of logs"]
    day.over_s = 49.0
    assert said_of(day) == ["disk: for 49 s above 600 MB, which is the retention"]
