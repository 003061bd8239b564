"""Tests of sources, models, sinks and schedulers of an installed package, as the documentation has them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ekya.results.storage.journal import read_journal

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/python.md").read_text(encoding="utf-8")


def part(language, word):
    """Returns the one example of the page in a language that has a word."""
    (text,) = (one for one in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if word in one)
    return text


def install(folder, *points):
    """Makes a folder that is a package with these entry points, as an installer would."""
    info = folder / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    sections = re.findall(r'"(ekya\.\w+)" = \{(\w+) = "(mine:\w+)"\}', part("toml", "entry-points"))
    assert len(sections) == 5
    names = "\n".join(f"[{group}]\n{name} = {value}" for group, name, value in (*sections, *points))
    (info / "entry_points.txt").write_text(names)
    (folder / "mine.py").write_text(part("python", "class Belt") + part("python", "class Halves"))
    (folder / "belts.yaml").write_text(part("yaml", "kind: belt"))


def run_python(folder, *words):
    """Runs Python with the package on its path; warnings of pydantic are errors."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    words = (sys.executable, "-W", "error::UserWarning", *words)
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, env=environment)


def test_names_of_an_installed_package_are_found(tmp_path):
    install(tmp_path)
    code = """
import json, torch, ekya, mine
from ekya.config.fleet_reading import dump_fleet, load_fleet, write_fleet
from ekya.models.edge.model import build_edge_model
from ekya.models.golden.golden_model import open_golden
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.run_folder import RunFolder
from ekya.service.answers.registry import make_sink
from ekya.streams.ingest.process import SourceProcess
from pathlib import Path

fleet = ekya.load_fleet("belts.yaml").config
write_fleet(Path("again.yaml"), fleet)
assert dump_fleet(load_fleet(Path("again.yaml"))) == dump_fleet(fleet)
stream = fleet.streams[0]
assert isinstance(stream.source, mine.Belt), stream.source
golden = open_golden(fleet.golden, fleet.classes, fleet.edge.task)
with SourceProcess(stream.first_pass, fleet.classes) as source:
    frames = [(frame, truth) for frame, truth in source.frames()]
(frame, truth), found = frames[60], golden.find_objects(frames[60][0].image)
sink = make_sink(fleet.answers[0], RunFolder(Path(".")))
Path("answers").mkdir()
sink.send_messages([{"id": "north/1", "objects": []}])
model = build_edge_model(("dark", "bright"), 0, 1, "tiny").eval()
camera = ekya.Camera(mine.Belt(seconds=3)).stream_values(1)["source"]
print(json.dumps({
    "frames": len(frames),
    "box": [truth.boxes.tolist(), found.boxes.tolist(), frame.boxes.tolist()],
    "class": [truth.classes.tolist(), found.classes.tolist()],
    "lines": Path("answers/lines.txt").read_text(),
    "logits": list(model(torch.zeros(2, 3, 32, 32)).shape),
    "scheduler": make_scheduler("halves").name,
    "camera": camera,
}))
"""
    done = run_python(tmp_path, "-c", code)
    assert done.stderr == ""
    result = json.loads(done.stdout)
    first, *others = result["box"]
    assert all(box == first for box in others)
    assert result["class"] == [[1], [1]]
    assert (result["frames"], result["logits"], result["scheduler"]) == (300, [2, 2], "halves")
    assert result["lines"] == "north/1 0\n"
    assert result["camera"] == {"kind": "belt", "seconds": 3}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (("kind: belt, seconds: 60", "kind: belt, seconds: x"), "streams.north.source.seconds: 'x' is not"),
        (("kind: belt,", "kind: bolt,"), "streams.north.source: there is no kind 'bolt'; use one of"),
        (("kind: belt,", "kind: gone,"), "source: gone of mine cannot be loaded (ModuleNotFoundError"),
        (("kind: lines", "kind: wires"), "answers[0]: there is no kind 'wires'"),
        (("model: tiny", "model: lost"), "student: lost of mine cannot be loaded (AttributeError"),
        (("dark, bright", "dark, green"), "green"),
    ],
)
def test_mistake_in_a_section_of_a_plug_in_is_one_sentence(tmp_path, changed, says):
    broken = ("ekya.sources", "gone", "nowhere:Gone"), ("ekya.students", "lost", "mine:lost")
    install(tmp_path, *broken)
    file = tmp_path / "belts.yaml"
    file.write_text(file.read_text().replace(*changed))
    done = run_python(tmp_path, "-m", "ekya", "run", "belts.yaml", "--clock", "virtual")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert says in line


@pytest.mark.live
@pytest.mark.long
@pytest.mark.parametrize("clock", ["wall", "virtual"])
def test_run_of_an_installed_package_trains_its_student(tmp_path, clock):
    install(tmp_path)
    words = ("--clock", clock, "--windows", "2", "--window", "20", "--no-dashboard", "--scheduler", "halves")
    done = run_python(tmp_path, "-m", "ekya", "run", "belts.yaml", *words)
    assert done.returncode in (0, 3), done.stderr
    summary = json.loads((tmp_path / "runs/belts/summary.json").read_text())
    assert summary["retrainings"]["finished"] > 0
    assert read_journal(tmp_path / "runs/belts/journal.jsonl")[0] == "halves"
