import ast
import importlib
import json
import re
import sys
from functools import partial
from itertools import count
from pathlib import Path

import gpu_check
import gpu_check_process
import pytest
from gpu_check import CHECKS, main
from gpu_check_process import Check, run_checks
from gpu_check_report import BEGIN, END, Finding, Machine, write_up

MACHINE = Machine("a GPU", "13.0", "2.11.0", "2026-01-31")
FINE = Finding("speed", "0.48", "0.479", True, {"sms": 64})


SCRIPT = """
import importlib, sys
sys.path.insert(0, {folder!r})
from gpu_check_process import Check, work_off
sys.exit(work_off([Check(name, module, name, 1.0) for name, module in {named!r} if name in sys.argv[2:]]))
"""

MODULE = """
import os, subprocess, sys, time
from gpu_check_report import Finding

def told(name, met=True):
    return Finding(name, "1", "2", met, {"pid": os.getpid()})
"""


@pytest.fixture
def checks(tmp_path, monkeypatch):
    """Makes checks with the given bodies, in one module or in the one named by ``module__check``."""

    def make(**bodies):
        named = [(name, name.rpartition("__")[0] or "things") for name in bodies]
        (tmp_path / "script.py").write_text(SCRIPT.format(folder=str(tmp_path), named=named))
        for module in {module for _, module in named}:
            own = [f"def {name}():\n    {bodies[name]}\n" for name, of in named if of == module]
            (tmp_path / f"{module}.py").write_text(MODULE + "".join(own))
        return [Check(name, module, name, 1.0) for name, module in named]

    monkeypatch.setattr(gpu_check, "run_checks", partial(run_checks, script=tmp_path / "script.py"))
    return make


def found(checks, until_s=1000.0, clock=lambda: 0.0):
    return list(gpu_check.run_checks(checks, until_s, now_s=clock))


def ticking_from(file):
    """A clock that stands until there is this file; then a reading takes as long as the look before it."""
    readings_s = count(step=0.25)
    return lambda: next(readings_s) if file.is_file() else 0.0


def test_run_checks_neighbours_of_a_module_share_a_process(checks):
    findings = found(
        checks(
            one="yield told('a')",
            two="yield told('b')",
            other__three="yield told('c')",
            four="yield told('d')",
        )
    )
    assert [(one.name, one.met) for one in findings] == [(name, True) for name in "abcd"]
    pids = [one.figures["pid"] for one in findings]
    assert pids[0] == pids[1]
    assert len(set(pids)) == 3


def test_run_checks_failed_check_keeps_findings_and_later_checks(checks):
    findings = found(
        checks(
            one="yield told('a'); yield told('b', False)",
            two="yield told('c'); raise ValueError('no\\nlevel')",
            three="yield told('d')",
        )
    )
    assert [(one.name, one.met) for one in findings] == [
        ("a", True),
        ("b", False),
        ("c", True),
        ("two", False),
        ("d", True),
    ]
    assert re.fullmatch(r"ValueError: no level \(things.py:\d+ two, .*\)", findings[3].measured)
    assert findings[3].figures["traceback"][-1] == "level"
    pids = [findings[place].figures["pid"] for place in (0, 2, 4)]
    assert pids[0] == pids[1] != pids[2]


def test_run_checks_crashed_process_reports_its_last_output(checks):
    findings = found(
        checks(
            one="yield told('a'); print('lost the GPU', file=sys.stderr, flush=True); os.abort()",
            two="print('{noise\\n[1]\\n{}'); print('odd', file=sys.stderr, flush=True); os._exit(3); yield",
            three="yield told('b')",
        )
    )
    assert [one.name for one in findings] == ["a", "one", "two", "b"]
    assert re.match(r'killed by SIGABRT; lost the GPU; File ".*", line \d+ in one', findings[1].measured)
    assert findings[2].measured == "it ended with 3; odd"
    assert findings[1].figures["stderr"][0] == "lost the GPU"


def test_run_checks_hanging_check_is_killed_with_children_and_located(checks, tmp_path):
    made = checks(
        hangs="yield told('a'); own = subprocess.Popen(['sleep', '600']); "
        f"open({str(tmp_path / 'new')!r}, 'w').write(str(own.pid)); "
        f"os.rename({str(tmp_path / 'new')!r}, {str(tmp_path / 'child')!r}); time.sleep(600)",
        next="yield told('b')",
    )
    findings = found(made, clock=ticking_from(tmp_path / "child"))
    assert [one.name for one in findings] == ["a", "hangs", "b"]
    assert re.match(
        r'it had not ended after \d+ s; File ".*/things.py", line \d+ in hangs', findings[1].measured
    )
    state = Path("/proc") / (tmp_path / "child").read_text() / "stat"
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_run_checks_hanging_processes_of_a_check_are_located(checks, tmp_path):
    """One waits for the other, which must not go on because the first has ended."""
    sleeps = f"import time; open({str(tmp_path / 'there')!r}, 'w'); time.sleep(600)"
    waits = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeps!r}])"
    made = checks(hangs=f"subprocess.run([sys.executable, '-c', {waits!r}]); yield", next="yield told('b')")
    finding, _ = found(made, clock=ticking_from(tmp_path / "there"))
    own, *others = finding.measured.split("; and a process of it; ")
    assert "selectors" in own or "subprocess" in own
    assert len(others) == 2
    assert "subprocess.py" in others[0]
    assert re.match(r'File "<string>", line 1 in <module>', others[1])
    assert sum("Current thread" in line for line in finding.figures["stderr"]) == 3


def test_run_checks_process_ignoring_sigterm_is_killed(checks, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check_process, "_END_S", 0.3)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); yield told('a'); "
    deaf += f"open({str(tmp_path / 'deaf')!r}, 'w'); time.sleep(600)"
    findings = found(checks(deaf=deaf, next="yield told('b')"), clock=ticking_from(tmp_path / "deaf"))
    assert [one.name for one in findings] == ["a", "deaf", "b"]


def test_run_checks_missing_package_skips_the_check(checks):
    findings = found(
        checks(
            one="import no_such_package.part; yield",
            two="import ekya.no_such_room; yield",
            three="yield told('a')",
        )
    )
    assert [one.met for one in findings] == [None, False, True]
    assert findings[0].measured == "left out: the Python package no_such_package is missing"
    assert "ekya.no_such_room" in findings[1].measured


def test_run_checks_packages_on_pythonpath_are_found(checks, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "carried.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    assert [one.met for one in found(checks(one="import carried; yield told('a')"))] == [True]


def test_run_checks_without_time_left_reports_check_unmet(checks):
    findings = found(checks(one="yield told('a')"), until_s=1.0)
    assert [(one.name, one.measured, one.met) for one in findings] == [
        ("one", "no time was left for it", False)
    ]


def test_run_checks_last_check_may_use_remaining_time(checks, tmp_path):
    began, over, ticks = tmp_path / "began", tmp_path / "over", count(10.0, 10.0)

    def clock():
        """Stands until the second check runs, which is over when its limit has long passed."""
        if not began.is_file():
            return 0.0
        now_s = next(ticks)
        if now_s > 30.0:
            over.touch()
        return now_s

    two = f"open({str(began)!r}, 'w')\n    while not os.path.exists({str(over)!r}): time.sleep(0.01)"
    findings = found(
        checks(one="yield told('a')", two=f"{two}\n    yield told('b')"), until_s=1e6, clock=clock
    )
    assert [(one.name, one.met) for one in findings] == [("a", True), ("b", True)]


def test_gpu_check_without_gpu_prints_one_line_and_keeps_docs(capsys, monkeypatch):
    monkeypatch.setattr(gpu_check, "_machine", lambda: None)
    before = gpu_check.PAGE.read_text(), gpu_check.DOCUMENT.exists()
    assert main([]) == 2
    told = capsys.readouterr()
    assert told.err == "gpu-check needs an NVIDIA GPU, and torch sees none\n"
    assert told.out == ""
    assert (gpu_check.PAGE.read_text(), gpu_check.DOCUMENT.exists()) == before


@pytest.fixture
def with_gpu(monkeypatch, tmp_path):
    """Machine with a GPU, and a separate copy of the documents."""
    page, document = tmp_path / "gpu.md", tmp_path / "gpu_check.json"
    page.write_text(f"Before.\n{BEGIN}\nNot yet.\n{END}\nAfter.\n")
    monkeypatch.setattr(gpu_check, "_machine", lambda: MACHINE)
    monkeypatch.setattr(gpu_check, "PAGE", page)
    monkeypatch.setattr(gpu_check, "DOCUMENT", document)
    return page, document


def test_gpu_check_writes_docs_only_when_all_checks_run(checks, with_gpu, capsys):
    page, document = with_gpu
    made = checks(one="yield told('a')", two="yield told('b', False)")
    assert main(["--only", "one", "--json", "-"], made) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["findings"]] == ["a"]
    assert "Not yet." in page.read_text()
    assert not document.exists()
    assert main([], made) == 1
    assert "| b | 1 | 2 | **no** |" in page.read_text()
    assert json.loads(document.read_text())["machine"]["torch"] == "2.11.0"


def test_write_up_replaces_the_table_by_what_was_not_as_expected(with_gpu):
    page, document = with_gpu
    odd = Finding("a | b", "x", "two\nlines", False)
    left_out = Finding("run", "y", "no Ray", None)
    write_up(MACHINE, [FINE, odd, left_out], document, page)
    write_up(MACHINE, [FINE, odd, left_out], document, page)
    assert page.read_text() == (
        f"Before.\n{BEGIN}\nMeasured on a GPU, driver for CUDA 13.0, torch 2.11.0, 2026-01-31; "
        "1 of 3 as expected, 1 not measured.\n\n"
        "| what | expected | measured | met |\n|---|---|---|---|\n"
        "| a \\| b | x | two lines | **no** |\n"
        f"| run | y | no Ray | not measured |\n{END}\nAfter.\n"
    )
    assert json.loads(document.read_text())["findings"][0]["figures"] == {"sms": 64}
    page.write_text("No marks.\n")
    with pytest.raises(ValueError, match="marks"):
        write_up(MACHINE, [FINE], document, page)


def test_gpu_page_has_table_marks_in_order():
    text = gpu_check.PAGE.read_text()
    assert text.index(BEGIN) < text.index(END)


def test_checks_have_unique_names_and_fit_the_time_limit():
    assert sum(check.limit_s for check in CHECKS) <= gpu_check.LIMIT_S <= 530
    assert len({check.name for check in CHECKS}) == len(CHECKS)


def test_gpu_check_skipped_check_is_no_failure(checks, with_gpu):
    assert main([], checks(one="yield told('a')", two="import no_such_package; yield")) == 0
    assert "| two | measured | left out" in with_gpu[0].read_text()


# Packages that torch and torchvision bring, and others without which a check is skipped.
BROUGHT = {"torch", "torchvision", "numpy"}
MORE = {
    "gpu_check_counters": {"psutil", "pynvml"},
    "gpu_check_mps": {"psutil"},
    "gpu_check_swap": {"psutil", "safetensors"},
    "gpu_check_work": {"psutil"},
}


@pytest.mark.parametrize("module", sorted({check.module for check in CHECKS} | {"gpu_check"}))
def test_check_module_imports_only_torch_and_listed_packages(module):
    assert imported_by(module) <= BROUGHT | MORE.get(module, set())


def imported_by(module):
    """Returns top-level names of the third-party packages that a module imports, transitively."""
    waiting, seen, foreign = [module], set(), set()
    while waiting:
        name = waiting.pop()
        path = next((one for one in places(name) if one.exists()), None)
        if path is None:
            foreign |= {name.partition(".")[0]} - sys.stdlib_module_names
        elif name not in seen:
            seen.add(name)
            waiting += imports_of(path)
            waiting += [name.rpartition(".")[0]] if "." in name else []
    return foreign - {"ekya"}


def places(name):
    path = gpu_check.ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py"), path / "__init__.py", gpu_check.ROOT / "experiments" / f"{name}.py"


def imports_of(path):
    """Yields the imports that run when a file is imported, not those within its functions."""
    waiting = list(ast.parse(path.read_text()).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            yield node.module
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            waiting += getattr(node, "body", []) if not isinstance(node, ast.FunctionDef) else []


def test_checks_in_list_exist():
    for check in CHECKS:
        assert callable(getattr(importlib.import_module(check.module), check.function))
