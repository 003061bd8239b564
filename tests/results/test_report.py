import io
import logging
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.units import StreamId
from ekya.results.metrics.health import Health, HealthState
from ekya.results.metrics.script_events import Cue, Happening, OccurredCue
from ekya.results.report.html import PictureRow, ReportFigure, ReportPicture, ReportPictures, render_report
from ekya.results.report.screen import PlainScreen, ScreenRow, ScreenState, draw_screen, open_screen
from ekya.results.report.tables import compare_tables, cue_table, health_lines, run_table

GAMMA = {"epochs": 8, "batch_size": 16, "head_width": 64, "trainable_blocks": 1, "data_fraction": 0.5}
NASTY = '<script>alert("x")</script> & [bold]'


def window(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "index": index,
        "accuracy": 0.75,
        "ap50": None,
        "validation_accuracy": 0.666,
        "retrained": True,
        "gamma": GAMMA,
        "lambda": {"every": 2, "resolution": 32},
        "retrain_share_milli": 200,
        "inference_share_milli": 305,
        "reason": "it gains 12 points",
        **changes,
    }


def health(index: int, state: str = "ok", reason: str = "", remedy: str = "") -> dict[str, Any]:
    return {"index": index, "state": state, "reason": reason, "remedy": remedy}


def summary(stream: str = "cam-1", **changes: Any) -> dict[str, Any]:
    return {
        "world": "emulated",
        "reference": None,
        "accuracy_margin": None,
        "scored_frames": None,
        "adaptation": {"labelled": 5, "served": 1, "sentence": None, "missed": False},
        "licences": {},
        "task": "classify",
        "scheduler": "thief",
        "seed": 1,
        "gpus": 2,
        "window_s": 30.0,
        "mean_accuracy": 0.812,
        "balanced_accuracy": 0.7,
        "ap50": None,
        "streams": {
            stream: {
                "mean_accuracy": 0.812,
                "balanced_accuracy": 0.7,
                "ap50": None,
                "validation_accuracy": 0.666,
                "without_retraining": 0.6,
                "gain": 0.205,
                "golden_part": None,
                "student_accuracy": None,
                "student_without_retraining": None,
                "false_alarm_share": None,
                "counted_objects": 12345,
                "excluded_objects": 10,
                "damaged_frames": 0,
                "lost_s": 0.0,
                "set_aside": None,
                "windows": [
                    window(0, accuracy=None, retrained=False, gamma=None, retrain_share_milli=0),
                    window(1),
                ],
            }
        },
        "frames": {"arrived": 100, "analysed": 60, "skipped": 40, "lost": 0, "due": 80},
        "retrainings": {"started": 2, "finished": 1, "failed": 0},
        "profiling_gpu_s": 3.0,
        "labelling_gpu_s": 2.0,
        "golden": {"labelled_frames": None, "calls": 7, "gpu_s": 0.5, "gpu_share": 0.01, "accuracy": None},
        "health": {
            "judged": 1,
            "total": {"ok": 1, "stale": 0, "unlabelled": 0, "behind": 0, "lost": 0},
            "sentence": None,
            "streams": {stream: [health(0), health(1)]},
        },
        "warnings": [],
        "host": {"planning_ms": {"p50": 1.5, "max": None}, "cpu": "two cores", "cores": [0, 1]},
        **changes,
    }


class Page(HTMLParser):
    """Text, tags and addresses of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "srcset"}]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_report_shows_numbers_and_reasons() -> None:
    text = Page(render_report("demo", summary())).text
    for words in ("81.2%", "60.0%", "+20.5", "12,345", "it gains 12 points", "8 ep, 1 block, head 64"):
        assert words in text
    assert "every 2nd frame at 32 px" in text
    assert "planning_ms p50" in text
    assert "set aside" not in text.lower()


def detecting() -> dict[str, Any]:
    run = summary(task="detect", ap50=0.654)
    run["golden"] |= {"labelled_frames": 24, "calls": 36, "gpu_share": 0.0125, "device": "cuda:0 (float16)"}
    run["streams"]["cam-1"]["ap50"] = 0.543
    run["streams"]["cam-1"]["windows"][1]["ap50"] = 0.432
    return run


def test_report_of_detectors_shows_f1_ap50_and_the_golden_detectors_share() -> None:
    text = " ".join(Page(render_report("demo", detecting())).text.split())
    for words in ("65.4%", "54.3%", "43.2%", "1.2%", "36 frames seen, 24 of them", "Accuracy is F1"):
        assert words in text
    plain = Page(render_report("demo", summary())).text
    assert "F1" not in plain
    assert "is itself right" not in plain
    assert "AP50" not in plain


def test_report_says_how_often_the_golden_model_is_right() -> None:
    run = summary()
    run["golden"] |= {"accuracy": 0.912, "accuracy_interval": [0.88, 0.934]}
    text = " ".join(Page(render_report("demo", run)).text.split())
    assert "is itself right on 91.2% (88.0% to 93.4%) of the crops" in text


def test_report_pictures_are_embedded_beside_their_stream() -> None:
    shown = ReportPicture("Golden detector", "2 objects", f'"{NASTY}', b"\xff\xd8one")
    pictures = {
        StreamId("cam-1"): ReportPictures((PictureRow("Window 1, 2.0 s", (shown, shown)),)),
        StreamId("cam-2"): ReportPictures(note="of another run"),
    }
    html = render_report("demo", detecting(), [], pictures)
    page = Page(html)
    assert page.addresses.count("data:image/jpeg;base64,/9hvbmU=") == 2
    assert "script" not in page.tags
    assert "2 objects" in page.text
    assert "Green: boxes" in page.text
    assert "of another run" not in page.text


def test_report_stream_without_pictures_says_why() -> None:
    html = render_report("demo", detecting(), [], {StreamId("cam-1"): ReportPictures(note="It was live.")})
    assert "It was live." in Page(html).text
    assert "Green: boxes" not in Page(html).text


def test_tables_of_detectors_show_ap50_instead_of_the_balanced_accuracy() -> None:
    lines = lines_of(run_table(detecting()))
    row = next(line for line in lines if "cam-1" in line)
    assert row.split()[1:3] == ["81.2%", "54.3%"]
    assert "saw 36 frames for labels and profiles, with 1.2% of the GPUs, on cuda:0 (float16)" in " ".join(
        line.strip() for line in lines
    )
    (table,) = compare_tables([detecting()])
    compared = lines_of(table)
    assert any("AP50" in line for line in compared)
    assert any("65.4%" in line for line in compared)


def test_report_names_lost_time_only_if_any() -> None:
    run = summary()
    assert "gave nothing" not in Page(render_report("demo", run, [])).text
    next(iter(run["streams"].values()))["lost_s"] = 12.5
    assert "Its camera gave nothing for 12.5 s" in Page(render_report("demo", run, [])).text


def test_report_and_table_name_unwell_streams_and_warnings() -> None:
    run = summary()
    run["health"]["streams"]["cam-1"] = [
        health(1, "behind", "80 of 90 frames were dropped", "give it more"),
        health(2, "behind", "81 of 90 frames were dropped", "give it more"),
        health(3, "lost", "its camera gave nothing", "check it"),
    ]
    run["health"]["total"] |= {"ok": 0, "behind": 2, "lost": 1}
    run["health"]["sentence"] = "nothing was well"
    run["warnings"] = [{"text": "memory is short", "from": ["inference/cam-1", "micro-profiler"]}]
    text = " ".join(Page(render_report("demo", run)).text.split())
    for words in ("behind in window 1: 80 of 90", "2 behind", "nothing was well", "memory is short"):
        assert words in text
    assert health_lines(run) == [
        "cam-1 was behind in windows 1, 2: 81 of 90 frames were dropped; give it more",
        "cam-1 was lost in window 3: its camera gave nothing; check it",
        "warning of inference/cam-1, micro-profiler: memory is short",
    ]
    assert "0/3" in next(line for line in lines_of(run_table(run)) if "cam-1" in line)


@pytest.mark.parametrize(("indices", "counted"), [((0, 1, 2), "2"), ((0,), "1")])
def test_report_and_table_count_the_same_windows(indices: tuple[int, ...], counted: str) -> None:
    run = summary()
    run["health"] |= {"judged": int(counted), "streams": {"cam-1": [health(index) for index in indices]}}
    run["health"]["total"]["ok"] = int(counted)
    text, lines = " ".join(Page(render_report("demo", run)).text.split()), lines_of(run_table(run))
    assert (f"{counted} of {counted}windows of streams ok after window 0" in text) == (len(indices) > 1)
    assert any("windows after window 0" in line for line in lines) == (len(indices) > 1)
    assert [line for line in lines if f"{counted}/{counted}" in line] == [
        line for line in lines if line.startswith(("cam-1", "all"))
    ]


def test_streams_that_were_behind_at_the_start_are_told_in_one_line() -> None:
    run = summary()
    behind = health(0, "behind", "9 of 90 frames were dropped", "give it more")
    run["health"]["streams"] = {
        name: [behind, health(1), *rest]
        for name, rest in (("a", []), ("b", []), ("c", [health(2, "behind", "8 of 90", "give it more")]))
    }
    assert health_lines(run) == [
        "c was behind in window 2: 8 of 90; give it more",
        "Behind in window 0, while the run began: a, b, c; 9 of 90 frames were dropped",
    ]
    run["health"]["streams"] = {"a": [behind]}
    assert health_lines(run) == ["a was behind in window 0: 9 of 90 frames were dropped; give it more"]


def test_report_html_in_names_and_reasons_is_escaped() -> None:
    run = summary(stream=NASTY)
    run["streams"][NASTY]["windows"][1]["reason"] = NASTY
    run["streams"][NASTY]["set_aside"] = NASTY
    run["host"]["cpu"] = NASTY
    run["health"]["streams"][NASTY][1] = health(1, "behind", NASTY, NASTY)
    run["warnings"] = [{"text": NASTY, "from": [NASTY]}]
    figure = ReportFigure(NASTY, f'" onload="x{NASTY}', b"png", b"dark")
    page = Page(render_report(NASTY, run, [figure]))
    assert "script" not in page.tags
    assert page.text.count(NASTY) >= 7


def test_report_loads_nothing_from_other_addresses() -> None:
    html = render_report("demo", summary(), [ReportFigure("a", "b", b"png", b"dark")])
    page = Page(html)
    assert page.addresses
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in page.addresses)
    assert not re.search(r"https?:|@import|url\(", html)
    assert "link" not in page.tags


def test_report_empty_run_is_rendered() -> None:
    text = Page(render_report("demo", summary(streams={}, mean_accuracy=None))).text
    assert "–" in text


def lines_of(renderable: Any, width: int = 120) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text().splitlines()


def test_run_table_shows_gain_of_retraining() -> None:
    row = next(line for line in lines_of(run_table(summary())) if "cam-1" in line)
    assert row.split() == [
        "cam-1",
        "81.2%",
        "70.0%",
        "60.0%",
        "+20.5",
        "1",
        "10%",
        "30%",
        "1/1",
    ]
    unknown = summary()
    unknown["streams"]["cam-1"].update(without_retraining=None, gain=None)
    dashed = [line for line in lines_of(run_table(unknown)) if line.count("–") == 2]
    assert len(dashed) == 2
    assert "cam-1" in dashed[0]
    assert "all" in dashed[1]


def test_run_table_live_camera_shows_accuracy_on_labels() -> None:
    live = summary()
    live["streams"]["cam-1"].update(mean_accuracy=None, balanced_accuracy=None)
    row = next(line for line in lines_of(run_table(live)) if "cam-1" in line)
    assert row.split()[1:3] == ["–", "66.6%"]
    assert "66.6%" in Page(render_report("demo", live)).text


def test_tables_markup_in_stream_name_is_plain_text() -> None:
    name = "[red]cam[/red]"
    for table in (run_table(summary(stream=name)), *compare_tables([summary(stream=name)])):
        assert any(name in line for line in lines_of(table))


def test_compare_table_marks_best_scheduler() -> None:
    other = summary(stream="cam-2", scheduler="uniform", mean_accuracy=0.5)
    (table,) = compare_tables([summary(), other])
    rows = {cells[0].strip(): cells[1:] for cells in (re.split(r"  +", line) for line in lines_of(table))}
    assert rows["Mean accuracy"] == ["81.2%", "50.0%"]
    assert (rows["cam-1"], rows["cam-2"]) == (["81.2%", "–"], ["–", "81.2%"])
    assert rows["Retrainings"] == ["1 of 2", "1 of 2"]
    best = [span.style for cell in table.columns[1].cells if isinstance(cell, Text) for span in [cell]]
    assert best == ["bold", "bold", "bold", ""]


def test_compare_tables_have_five_schedulers_each() -> None:
    names = ["ekya", "paper", "ekya@paper", "thief", "uniform:inference=300", "no-retrain"]
    tables = [lines_of(one) for one in compare_tables([summary(scheduler=name) for name in names])]
    assert [line.split()[0] for lines in tables for line in lines if "81.2%" in line] == ["Mean", "cam-1"] * 2
    assert [any("ekya" in line for line in lines) for lines in tables] == [True, False]


LONG = ("parking-deck-level-2-north", "gate", "ahmetozlu_input_video", "crossing", "yard")


def with_streams(**changes: Any) -> dict[str, Any]:
    """A summary of several cameras with long names, in many windows."""
    run = detecting() | changes
    windows = [window(index, retrain_share_milli=55) for index in range(120)]
    run["streams"] = {name: run["streams"]["cam-1"] | {"windows": windows} for name in LONG}
    run["health"]["streams"] = {name: [health(index) for index in range(120)] for name in LONG}
    run["accuracy_margin"], run["reference"], run["scored_frames"] = 0.012, "deimv2-femto", 94
    return run


def full_screen() -> ScreenState:
    training = replace(ROW, training=RetrainConfig(**GAMMA), training_progress=1.0, retrain_share_milli=1000)
    rows = tuple(replace(training, stream=StreamId(name), inference_share_milli=55) for name in LONG)
    return replace(STATE, window=1234, window_count=2000, window_end_us=999 * 10**6, rows=rows)


CUE = OccurredCue(
    Cue(2_500_000, StreamId(LONG[0]), Happening.NIGHT, 9_000_000),
    2_500_000,
    {StreamId(name): (300, 200) for name in LONG},
    {StreamId(name): (250, 100) for name in LONG},
)


@pytest.mark.parametrize(
    "tables",
    [
        lambda: [run_table(with_streams())],
        lambda: [run_table(with_streams(task="classify"))],
        lambda: list(
            compare_tables(
                [
                    with_streams(scheduler=name)
                    for name in ("ekya", "uniform:inference=300@paper", "no-retrain", "thief", "paper", "mix")
                ]
            )
        ),
        lambda: [draw_screen(full_screen())],
        lambda: [cue_table([CUE])],
    ],
    ids=["run", "run of classifiers", "compare", "screen", "script"],
)
def test_tables_fit_80_columns_and_no_word_is_cut(tables: Any) -> None:
    for table in tables():
        lines = lines_of(table, 80)
        assert max(map(len, lines)) <= 80
        text = "\n".join(lines)
        assert "…" not in text
        assert all(name[:8] in text for name in LONG), "the rest of a long one is below"


ROW = ScreenRow(
    stream=StreamId("cam-1"),
    status="serving",
    accuracy_now=0.8,
    accuracy_mean=0.75,
    training=None,
    training_progress=None,
    inference=InferenceConfig(2, 32),
    retrain_share_milli=0,
    inference_share_milli=250,
)
STATE = ScreenState(45_000_000, 1, 5, 30_000_000, 60_000_000, 1000, (ROW,), note="a note")


def test_screen_shows_trainings_and_shares() -> None:
    training = replace(ROW, training=RetrainConfig(**GAMMA), training_progress=0.4, retrain_share_milli=500)
    text = "\n".join(lines_of(draw_screen(replace(STATE, rows=(training,))), width=140))
    for words in (
        "window 1 (last: 4)",
        "15 s left",
        "0.75 of 1 GPUs",
        "40%",
        "8 ep, 1 block",
        "50%",
        "a note",
    ):
        assert words in text
    assert STATE.window_progress == 0.5


BEHIND = Health(HealthState.BEHIND, "40 of 90 frames were dropped", "give it more GPUs")


def test_screen_unwell_stream_shows_remedy() -> None:
    text = "\n".join(lines_of(draw_screen(replace(STATE, rows=(replace(ROW, health=BEHIND),))), width=140))
    assert "cam-1 is behind: 40 of 90 frames were dropped; give it more GPUs" in text
    assert "cam-1 is" not in "\n".join(lines_of(draw_screen(STATE), width=140))


LOST = replace(ROW, status="lost", health=Health(HealthState.LOST, "no signal", "check it"))
TRAINING = replace(ROW, training=RetrainConfig(**GAMMA), retrain_share_milli=500)
NAMES = tuple(StreamId(name) for name in ("a", "b", "c"))


def logged(caplog: pytest.LogCaptureFixture, states: Any) -> list[str]:
    """What the plain screen logs of states, each a window and its rows, without the times."""
    caplog.set_level(logging.INFO)
    screen = PlainScreen()
    for index, rows in states:
        screen.log_changes(replace(STATE, window=index, rows=rows))
    return [record.getMessage().removeprefix("45.0 s: ").partition(" (last")[0] for record in caplog.records]


def test_plain_screen_logs_one_line_of_a_stream_in_a_window(caplog: pytest.LogCaptureFixture) -> None:
    behind = replace(ROW, health=BEHIND)
    worse = replace(ROW, health=replace(BEHIND, reason="50 of 90 frames were dropped"))
    lines = logged(
        caplog,
        [
            *((1, (row,)) for row in (ROW, TRAINING, behind, worse, LOST, LOST, ROW, LOST)),
            *((2, (row,)) for row in (LOST, LOST, TRAINING, ROW)),
            *((3, (row,)) for row in (ROW, TRAINING, ROW, TRAINING, ROW)),
        ],
    )
    assert lines == [
        "window 1",
        "cam-1 has trained 8 ep, 1 block, head 64, batch 16, 50% data; accuracy now 80.0%; "
        "is behind: 40 of 90 frames were dropped; give it more GPUs",
        "window 2",
        "cam-1 is lost: no signal; check it",
        "window 3",
        "cam-1 is lost no more",
    ]


def test_plain_screen_tells_of_streams_that_fall_behind_at_a_start_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    well = tuple(replace(ROW, stream=name) for name in NAMES)
    one_by_one = [
        tuple(
            replace(row, health=replace(BEHIND, reason=f"{at} of 90 frames were dropped"))
            if at <= so_far
            else row
            for at, row in enumerate(well)
        )
        for so_far in range(3)
    ]
    lines = logged(caplog, [(0, well), *((0, rows) for rows in one_by_one), (1, one_by_one[-1]), (1, well)])
    assert lines == [
        "window 0",
        "window 1",
        "a, b, c are behind: 0 of 90 frames were dropped; give it more GPUs",
    ]
    screen = "\n".join(lines_of(draw_screen(replace(STATE, rows=one_by_one[-1])), width=140))
    assert "a, b, c are behind: 0 of 90" in screen


def test_plain_screen_logs_only_changes(caplog: pytest.LogCaptureFixture) -> None:
    preparing = replace(ROW, status="preparing")
    aside = replace(ROW, status="set aside")
    rows = (ROW, preparing, ROW, TRAINING, TRAINING)
    assert logged(
        caplog, [*((1, (row,)) for row in rows), (2, (TRAINING,)), (3, (aside,)), (3, (aside,))]
    ) == [
        "window 1",
        "window 2",
        "window 3",
        "cam-1 has trained 8 ep, 1 block, head 64, batch 16, 50% data; accuracy now 80.0%; is set aside",
    ]


def test_open_screen_live_table_on_terminal_only() -> None:
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=120)
    with open_screen(terminal) as show:
        show(STATE)
    assert "cam-1" in out.getvalue()
    plain = io.StringIO()
    with open_screen(Console(file=plain)) as show:
        show(STATE)
    assert plain.getvalue() == ""


def test_report_and_table_say_what_accuracy_agrees_with_and_why_nothing_was_adapted():
    told = summary(
        task="detect",
        reference="deimv2-femto",
        accuracy_margin=0.0123,
        scored_frames=94,
        licences={"deimv2-femto": "Apache-2.0"},
        adaptation={
            "labelled": 0,
            "served": 0,
            "sentence": "nothing was adapted, since it was night",
            "missed": True,
        },
    )
    told["streams"]["cam-1"] |= {
        "golden_part": 0.6,
        "student_accuracy": 0.5,
        "student_without_retraining": 0.4,
    }
    page = " ".join(render_report("videos", told).split())
    assert "Accuracy is agreement with deimv2-femto, from 94 frames: 81.2% ± 1.2 points" in page
    assert "deimv2-femto (Apache-2.0)." in page
    assert "Nothing was adapted, since it was night." in page
    caption = run_table(told).caption
    assert "agreement with deimv2-femto, as F1 at an IoU of 0.5, from 94 frames: ± 1.2 points" in caption
    first, second = health_lines(told)[:2]
    assert "answered 60.0% of the frames" in first
    assert "the student alone reaches 50.0%, without retraining 40.0%" in first
    assert second == "warning: nothing was adapted, since it was night"
