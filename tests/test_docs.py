"""Tests of the documentation: links, navigation, and the reference beside the code. MkDocs is not needed."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import generated
import pytest
import yaml
from cli_page import commands_of, options_of
from page_links import Link, anchors, links, named, prose, slug, with_links
from page_text import cell, code, table
from pydantic import BaseModel
from settings_page import page, undescribed
from typer.main import get_command

from ekya.cli import app
from ekya.config.fleet_file import FleetConfig
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.events import DriftDetected
from ekya.core.units import StreamId
from ekya.fleet.servers_file import ServersSpec
from ekya.results.metrics.accuracy import FrameCounts, ScoreSeries, StreamScore, WindowScore
from ekya.results.metrics.health import Health, WindowHealth
from ekya.results.metrics.run_history import summarize_steps
from ekya.results.metrics.summary import RunFacts, SampledAccuracy, SummaryHost, build_summary
from ekya.results.metrics.window_outcomes import WindowOutcome

ROOT = Path(__file__).parents[1]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
CARDS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "datasets").glob("*/README.md"))
READ = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES, *CARDS]
INCLUDED = re.compile(r"^<!-- included: (\S+) -->$", re.MULTILINE)

DESCRIBED_IN_WORDS_ONLY: frozenset[str] = frozenset(
    {
        *(f"retraining.{name}" for name in ("epochs", "batch_sizes", "head_widths", "trainable_blocks")),
        "retraining.data_fractions",
        "inference.every",
        "inference.resolutions",
        *(f"streams[].play.script[].at_s (event: {event})" for event in ("burst", "joins", "lost", "night")),
        *(f"streams[].play.script[].for_s (event: {event})" for event in ("burst", "lost", "night")),
        "streams[].play.script[].factor (event: burst)",
    }
)
"""Keys whose model describes them together, not one by one. No key may be added."""


def full_text(page: str) -> str:
    """A page as the site shows it: with its generated and included parts."""
    text = generated.filled((ROOT / page).read_text(encoding="utf-8"))
    return INCLUDED.sub(lambda match: (ROOT / match.group(1)).read_text(encoding="utf-8"), text)


@pytest.mark.parametrize("page", READ)
def test_docs_links_lead_to_existing_files_and_headings(page):
    wrong = []
    for link in links(generated.filled((ROOT / page).read_text(encoding="utf-8"))):
        target = named(page, link.path) if link.path else page
        if not (ROOT / target).is_file():
            wrong.append(f"{page}:{link.line}: {link.path}: there is no such file")
        elif link.anchor and link.anchor not in anchors(full_text(target)):
            wrong.append(f"{page}:{link.line}: {link.path}#{link.anchor}: there is no such heading")
    assert not wrong


def test_docs_navigation_lists_every_page_once():
    assert sorted(navigation()) == [page.removeprefix("docs/") for page in PAGES]


def test_docs_generated_parts_each_have_a_page():
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    assert sorted(name for text in texts for name in generated.PLACE.findall(text)) == sorted(generated.PARTS)


@pytest.mark.parametrize("page", PAGES)
def test_docs_generated_parts_stand_in_the_repository_as_they_are_made(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == generated.with_parts(text), "write it anew: make reference"
    names = generated.PLACE.findall(text)
    assert [f"<!-- end of {name} -->" in text for name in names] == [True] * len(names)
    assert bool(names) == ("generated:" in text)


def test_docs_cells_with_a_bar_are_one_cell_for_every_reader_of_markdown():
    assert table(("a", "b"), [("`--clock <wall|virtual>` or `x`", "1|2")]).splitlines()[2] == (
        r"| <code>--clock &lt;wall&#124;virtual&gt;</code> or `x` | 1\|2 |"
    )


def test_docs_results_show_the_tables_of_the_csvs():
    text = full_text("docs/results.md")
    with (ROOT / "experiments/results/figure7_paper.csv").open(encoding="utf-8", newline="") as file:
        (row,) = (row for row in csv.reader(file) if row[0] == "accuracy of ekya on 0.8 GPUs a stream")
    assert len(row) == 5
    assert f"| {' | '.join(row)} |" in text
    assert "points of ekya above the worst uniform," not in text, "it is left out"
    assert "<!-- " not in text


@pytest.mark.parametrize(
    ("root", "sections"), [(FleetConfig, generated.fleet_file), (ServersSpec, generated.servers_file)]
)
def test_docs_reference_names_every_key(root, sections):
    in_reference = {key.name for section in sections() for key in section.keys}
    text = page(sections())
    for model in models_below(root):
        for name, info in model.model_fields.items():
            assert (info.alias or name) in in_reference, f"{model.__name__}.{name}"
            assert f"| `{info.alias or name}` |" in text


def test_docs_keys_are_all_described_in_the_code():
    assert set(undescribed(generated.fleet_file())) <= DESCRIBED_IN_WORDS_ONLY
    assert not undescribed(generated.servers_file())
    assert not undescribed(generated.stores_file())


def test_docs_reference_names_enum_values_and_source_kinds():
    text = page(generated.fleet_file())
    for value in ("quantised", "drawn"):
        assert f"`{value}`" in text
    for kind in ("camera", "video", "waymo", "cityscapes", "sample_list", "image_folder", "synthetic_city"):
        assert f"## `streams[].source` with `kind: {kind}`" in text
    assert "| `min_accuracy` | number ≥ 0, < 1 | chosen |" in text
    assert "| `weight` | number > 0 | `1` |" in text


def test_docs_reference_names_every_command_and_option():
    text = generated.PARTS["cli"]()
    names = []
    for name, command in commands_of(get_command(app), "ekya"):
        names.append(name)
        assert f"# `{name}`\n" in text
        section = text.partition(f"# `{name}`\n")[2].partition("\n#")[0]
        for option, _ in options_of(command, name):
            assert f"| {cell(code(option))} |" in section
    assert {"ekya run", "ekya golden label", "ekya fleet run"} <= set(names)


def test_docs_reference_names_the_metrics():
    text = generated.PARTS["metrics"]()
    assert "| `ekya_accuracy` | gauge | `stream` |" in text
    assert "| `ekya_gpu_energy_joules` | counter |" in text
    of_service = generated.PARTS["service-metrics"]()
    assert "| `ekya_stream_retrainings_total` | counter | `stream`, `outcome` |" in of_service


def test_docs_name_the_alerts():
    assert (
        '| `EkyaServiceDown` | critical | `up{job=~"ekya.*"} == 0` | 2 min |'
        in generated.PARTS["service-alerts"]()
    )


def test_docs_summary_page_describes_every_field():
    described = words_of_tables((ROOT / "docs/summary.md").read_text(encoding="utf-8"), first_column=False)
    assert [name for name in field_names(an_eventful_summary()) if name not in described] == []


@pytest.mark.parametrize("heading", ["The run", "A stream", "Health"])
def test_docs_summary_page_describes_no_unknown_field(heading):
    text = (ROOT / "docs/summary.md").read_text(encoding="utf-8")
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    described = words_of_tables(section, first_column=True)
    assert len(described) > 5
    assert sorted(described - set(field_names(an_eventful_summary()))) == []


# What the links module makes of Markdown.


def test_docs_links_inside_code_are_ignored():
    text = "[a](one.md)\n```\n[b](two.md)\n```\n`[c](three.md)` [`d`](four.md#e) [f](https://g.h)\n"
    assert list(links(text)) == [Link(1, "one.md", ""), Link(5, "four.md", "e")]
    assert with_links(text, str.upper) == text.replace("one.md", "ONE.MD").replace("four.md", "FOUR.MD")


def test_docs_anchors_match_those_of_the_site():
    headings = "# How it's *made*: a_b\n## `ekya run`\n## `ekya run`\n```\n# no\n```\n### [x](y.md) γ\n"
    assert anchors(headings) == {"how-its-made-a_b", "ekya-run", "ekya-run_1", "x"}
    assert slug("`streams[].source` with `kind: video`") == "streamssource-with-kind-video"
    assert [number for number, _ in prose("a\n~~~\nb\n~~~\nc")] == [1, 5]


def navigation() -> list[str]:
    """Returns the pages that mkdocs.yml lists."""

    class Loader(yaml.SafeLoader):
        """Reads the names of Python objects as text."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda _loader, name, _node: name)
    with (ROOT / "mkdocs.yml").open(encoding="utf-8") as file:
        nav = yaml.load(file, Loader)["nav"]

    def pages(entry: object) -> list[str]:
        match entry:
            case str():
                return [entry]
            case list():
                return [page for one in entry for page in pages(one)]
            case dict():
                return [page for one in entry.values() for page in pages(one)]
        raise TypeError(entry)

    return pages(nav)


def models_below(root: type[BaseModel]) -> set[type[BaseModel]]:
    """Returns the root and all models in its fields."""
    found: set[type[BaseModel]] = set()
    todo: list[object] = [root]
    while todo:
        one = todo.pop()
        todo += get_args(one)
        if isinstance(one, type) and issubclass(one, BaseModel) and one not in found:
            found.add(one)
            todo += [info.annotation for info in one.model_fields.values()]
    return found


def words_of_tables(text: str, first_column: bool) -> set[str]:
    """Returns the names in code spans of a text's tables, each part of a dotted name by itself."""
    rows = re.findall(r"^\|[^|]*\|" if first_column else r"^\|.*\|", text, re.MULTILINE)
    words = [word for row in rows for word in re.findall(r"`([^`]+)`", row)]
    return {part for word in words for part in word.split(".") if "{" not in part}


def field_names(value: object) -> list[str]:
    """Returns the names of all fields below a JSON value; a stream's name is none."""
    match value:
        case dict():
            below = [name for one in value.values() for name in field_names(one)]
            return [*(name for name in value if name != "cam"), *below]
        case list():
            return [name for one in value for name in field_names(one)]
    return []


def an_eventful_summary() -> dict[str, object]:
    """Returns a summary in which every list has an entry."""
    cam = StreamId("cam")
    gamma = RetrainConfig(epochs=8, batch_size=16, head_width=64, trainable_blocks=1, data_fraction=0.5)
    facts = RunFacts(
        world="live",
        scheduler="ekya",
        seed=0,
        gpus=1,
        window_s=16,
        history=replace(summarize_steps([]), drifts=(DriftDetected(2, cam, 0, 1, "why"),)),
        health={cam: (WindowHealth(0, Health()),)},
        warnings={"text": ("scheduler",)},
    )
    facts = replace(facts, host=SummaryHost(planning_ms=(1.0,), swap_ms=(1.0,), swap_delay_ms=(1.0,)))
    score = StreamScore(
        (WindowScore(0, (1,), (1,)),), ScoreSeries([], [], []), FrameCounts(1, 1, 0, 0), 0, 0, 0
    )
    outcome = WindowOutcome(cam, 0, True, gamma, InferenceConfig(2, 32), 250, 125, "so")
    return build_summary(facts, [outcome], {cam: score}, {cam: SampledAccuracy(0.1, 0.6)})
