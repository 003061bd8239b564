import io
import logging
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.units import StreamId
from ekya.results.metrics.health import Health, HealthState
from ekya.results.report.html import PictureRow, ReportFigure, ReportPicture, ReportPictures, render_report
from ekya.results.report.screen import PlainScreen, ScreenRow, ScreenState, draw_screen, open_screen
from ekya.results.report.tables import compare_table, health_lines, run_table

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
        "frames": {"arrived": 100, "analysed": 60, "skipped": 40, "lost": 0},
        "retrainings": {"started": 2, "finished": 1, "failed": 0},
        "profiling_gpu_s": 3.0,
        "labelling_gpu_s": 2.0,
        "golden": {"labelled_frames": None, "calls": 7, "gpu_s": 0.5, "gpu_share": 0.01},
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
    run["golden"] |= {"labelled_frames": 24, "calls": 36, "gpu_share": 0.0125}
    run["streams"]["cam-1"]["ap50"] = 0.543
    run["streams"]["cam-1"]["windows"][1]["ap50"] = 0.432
    return run


def test_report_of_detectors_shows_f1_ap50_and_the_golden_detectors_share() -> None:
    text = " ".join(Page(render_report("demo", detecting())).text.split())
    for words in ("65.4%", "54.3%", "43.2%", "1.2%", "36 frames seen, 24 of them", "Accuracy is F1"):
        assert words in text
    plain = Page(render_report("demo", summary())).text
    assert "F1" not in plain
    assert "AP50" not in plain


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
    assert [cell.strip() for cell in row.strip("│").split("│")][1:3] == ["81.2%", "54.3%"]
    assert "saw 36 frames for labels and profiles, with 1.2% of the GPUs" in " ".join(
        line.strip() for line in lines
    )
    compared = lines_of(compare_table([detecting()]))
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
        line for line in lines if "cam-1" in line or " all " in line
    ]


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
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
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
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[1:3] == ["–", "66.6%"]
    assert "66.6%" in Page(render_report("demo", live)).text


def test_tables_markup_in_stream_name_is_plain_text() -> None:
    name = "[red]cam[/red]"
    for table in (run_table(summary(stream=name)), compare_table([summary(stream=name)])):
        assert any(name in line for line in lines_of(table))


def test_compare_table_marks_best_scheduler() -> None:
    other = summary(stream="cam-2", scheduler="uniform", mean_accuracy=0.5)
    lines = lines_of(compare_table([summary(), other]))
    thief = next(line for line in lines if "thief" in line)
    uniform = next(line for line in lines if "uniform" in line)
    assert thief.count("81.2%") == 2
    assert "–" in thief
    assert "50.0%" in uniform
    assert "1 of 2" in uniform


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


def test_plain_screen_logs_changes_of_health(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    behind = replace(ROW, health=BEHIND)
    worse = replace(ROW, health=replace(BEHIND, reason="50 of 90 frames were dropped"))
    lost = replace(ROW, status="lost", health=Health(HealthState.LOST, "no signal", "check it"))
    screen = PlainScreen()
    for row in (ROW, behind, worse, lost, lost, ROW):
        screen.log_changes(replace(STATE, rows=(row,)))
    lines = [record.getMessage().split("cam-1 ")[1] for record in caplog.records][1:]
    assert lines == [
        "is behind: 40 of 90 frames were dropped; give it more GPUs",
        "is lost: no signal; check it",
        "is serving",
        "is lost no more",
    ]


def test_plain_screen_logs_only_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    training = replace(ROW, training=RetrainConfig(**GAMMA), retrain_share_milli=500)
    screen = PlainScreen()
    for row in (ROW, ROW, training, training, replace(ROW, status="set aside")):
        screen.log_changes(replace(STATE, rows=(row,)))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert "window 1" in lines[0]
    assert "trains 8 ep" in lines[1]
    assert "stopped training 8 ep" in lines[2]
    assert lines[3].endswith("cam-1 is set aside")


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
