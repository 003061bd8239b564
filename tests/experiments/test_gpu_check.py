import json
import os
import time
from dataclasses import replace
from pathlib import Path

import gpu_check
import pytest
from gpu_check import CHECKS, Check, main, run_checks
from gpu_check_report import BEGIN, END, Finding, Machine, write_up

from ekya.gpu.sm_layout import SmLayout, SmReport

MACHINE = Machine("a GPU", "13.0", "2.11.0", "2026-01-31")
FINE = Finding("speed", "0.48", "0.479", True, {"sms": 64})


@pytest.fixture
def checks(tmp_path, monkeypatch):
    """Checks whose processes do what the given body says, in place of the real ones."""
    monkeypatch.setattr(gpu_check, "__file__", str(tmp_path / "fake_check.py"))

    def make(**bodies):
        cases = "".join(f"if name == {name!r}:\n    {body}\n" for name, body in bodies.items())
        (tmp_path / "fake_check.py").write_text(
            "import json, os, subprocess, sys, time\nname = sys.argv[2]\n"
            "def tell(name, met=True):\n"
            "    print(json.dumps(dict(name=name, expected='1', measured='2', met=met)), flush=True)\n"
            + cases
        )
        return [Check(name, "m", "f", 10.0) for name in bodies]

    return make


def found(checks, seconds=60.0):
    return list(run_checks(checks, time.monotonic() + seconds))


def test_a_check_that_fails_does_not_stop_the_others_and_what_it_told_before_counts(checks):
    findings = found(
        checks(
            one="tell('a'); tell('b', False)",
            two="tell('c'); raise SystemExit('lost the GPU')",
            three="tell('d')",
        )
    )
    assert [(one.name, one.met) for one in findings] == [
        ("a", True),
        ("b", False),
        ("c", True),
        ("two", False),
        ("d", True),
    ]
    assert findings[3].measured == "lost the GPU"


def test_a_check_that_hangs_is_ended_with_all_that_it_started(checks, tmp_path):
    made = checks(
        hangs="tell('a'); own = subprocess.Popen(['sleep', '60']); "
        "open('child', 'w').write(str(own.pid)); time.sleep(60)",
        next="tell('b')",
    )
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        findings = found([replace(made[0], limit_s=0.7), made[1]])
    finally:
        os.chdir(here)
    assert [one.name for one in findings] == ["a", "hangs", "b"]
    assert findings[1].measured == "it had not ended after 1 s"
    state = Path("/proc") / (tmp_path / "child").read_text() / "stat"
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_check_without_time_is_said_to_be_missing(checks):
    findings = found(checks(one="tell('a')"), seconds=1.0)
    assert [(one.name, one.measured, one.met) for one in findings] == [
        ("one", "no time was left for it", False)
    ]


def test_without_a_gpu_it_says_one_line_and_leaves_the_docs_alone(capsys, monkeypatch):
    monkeypatch.setattr(gpu_check, "read_layouts", lambda: SmReport((), "CUDA shows no GPU to this process"))
    before = gpu_check.PAGE.read_text(), gpu_check.DOCUMENT.exists()
    assert main([]) == 2
    told = capsys.readouterr()
    assert told.err == "gpu-check needs an NVIDIA GPU: CUDA shows no GPU to this process\n"
    assert told.out == ""
    assert (gpu_check.PAGE.read_text(), gpu_check.DOCUMENT.exists()) == before


@pytest.fixture
def with_gpu(monkeypatch, tmp_path):
    """A machine with a GPU, and docs of its own."""
    page, document = tmp_path / "gpu.md", tmp_path / "gpu_check.json"
    page.write_text(f"Before.\n{BEGIN}\nNot yet.\n{END}\nAfter.\n")
    monkeypatch.setattr(gpu_check, "read_layouts", lambda: SmReport((SmLayout(8, 16, 4),), "one"))
    monkeypatch.setattr(gpu_check, "_machine", lambda: MACHINE)
    monkeypatch.setattr(gpu_check, "PAGE", page)
    monkeypatch.setattr(gpu_check, "DOCUMENT", document)
    return page, document


def test_all_checks_together_are_written_down_and_one_alone_is_not(checks, with_gpu, capsys):
    page, document = with_gpu
    made = checks(one="tell('a')", two="tell('b', False)")
    assert main(["--only", "one", "--json", "-"], made) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["findings"]] == ["a"]
    assert "Not yet." in page.read_text()
    assert not document.exists()
    assert main([], made) == 1
    assert "| b | 1 | 2 | **no** |" in page.read_text()
    assert json.loads(document.read_text())["machine"]["torch"] == "2.11.0"


def test_the_page_keeps_all_but_its_table(with_gpu):
    page, document = with_gpu
    odd = Finding("a | b", "x", "two\nlines", False)
    write_up(MACHINE, [FINE, odd], document, page)
    write_up(MACHINE, [FINE, odd], document, page)
    assert page.read_text() == (
        f"Before.\n{BEGIN}\nMeasured on a GPU, driver for CUDA 13.0, torch 2.11.0, 2026-01-31; "
        "1 of 2 as expected.\n\n"
        "| what | expected | measured | met |\n|---|---|---|---|\n"
        f"| speed | 0.48 | 0.479 | yes |\n| a \\| b | x | two lines | **no** |\n{END}\nAfter.\n"
    )
    assert json.loads(document.read_text())["findings"][0]["figures"] == {"sms": 64}
    page.write_text("No marks.\n")
    with pytest.raises(ValueError, match="marks"):
        write_up(MACHINE, [FINE], document, page)


def test_the_real_page_has_its_marks():
    text = gpu_check.PAGE.read_text()
    assert text.index(BEGIN) < text.index(END)


def test_the_checks_have_names_of_their_own_and_end_in_eight_minutes():
    assert gpu_check.LIMIT_S <= 470
    assert len({check.name for check in CHECKS}) == len(CHECKS)
