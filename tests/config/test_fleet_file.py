import json
import os
import subprocess
import sys
from itertools import pairwise
from typing import get_args

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from ekya.api.fleets import Camera, make_fleet
from ekya.config.fleet_file import OPEN, FleetConfig
from ekya.config.fleet_reading import dump_fleet, dump_schema, load_fleet, with_play, with_stream, write_fleet
from ekya.config.fleet_sections import frame_sides
from ekya.config.run_options import require_end
from ekya.core.areas import Areas
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.errors import UserError
from ekya.core.profile import Profiler
from ekya.models.edge.architecture_table import Task
from ekya.planning.placement.homes import Processes
from ekya.planning.placement.pack import Packing
from ekya.streams.sources import AnySource

TRIANGLE = [[0, 0], [1, 0], [1, 1]]
KINDS = ", ".join(repr(kind.model_fields["kind"].default) for kind in get_args(get_args(AnySource)[0]))


def fleet_dict():
    return {
        "name": "test",
        "classes": ["person", "car"],
        "gpus": 1.5,
        "window_s": 24,
        "windows": 2,
        "golden": {"model": "resnext29", "weights": "golden.safetensors"},
        "streams": [
            {"id": "cam-2", "source": {"kind": "video", "files": ["a.mp4", "b.mp4"]}},
            {"id": "cam-1", "source": {"kind": "synthetic_city", "seed": 3}},
        ],
    }


@pytest.fixture
def folder(tmp_path):
    for name in ("golden.safetensors", "a.mp4", "b.mp4"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def load(folder, raw, **changes):
    (folder / "fleet.yaml").write_text(raw if isinstance(raw, str) else yaml.safe_dump(raw))
    return load_fleet(folder / "fleet.yaml", changes)


def refusal(folder, raw, **changes):
    """Returns the one-line error message without the file name that it must begin with."""
    with pytest.raises(UserError) as caught:
        load(folder, raw, **changes)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(folder / "fleet.yaml"))
    return text.removeprefix(str(folder / "fleet.yaml")).removeprefix(": ")


def changed(key, value, raw=None):
    """Returns the test's fleet, or another, with the value at a key as messages name it."""
    raw = raw or fleet_dict()
    *parts, last = key.split(".")
    place = raw
    for part in parts:
        if isinstance(place, list):
            place = next(stream for stream in place if stream["id"] == part)
        else:
            place = place.setdefault(part, {})
    place[last] = value
    return raw


def test_load_fleet_sorts_streams_and_resolves_paths(folder):
    fleet = load(folder, fleet_dict())
    assert [stream.id for stream in fleet.streams] == ["cam-1", "cam-2"]
    assert fleet.streams[1].source.files == (folder / "a.mp4", folder / "b.mp4")
    assert fleet.golden.weights == folder / "golden.safetensors"
    assert fleet.capacity_milli == 1500


def test_load_fleet_reads_scheduler_and_placement(folder):
    fleet = load(folder, {**fleet_dict(), "scheduler": "uniform:inference=300", "placement": "best-fit"})
    assert (fleet.scheduler, fleet.placement) == ("uniform:inference=300", Packing.BEST_FIT)
    assert load(folder, fleet_dict(), scheduler="no-retrain").scheduler == "no-retrain"


def test_fleet_under_preset_changes_the_profiler_and_an_open_window_alone(folder):
    """So schedulers that are compared differ in what they decide."""
    fleet = load(folder, fleet_dict(), placement="best-fit", preparation={"doses": 3}, window_s=30)
    under = fleet.with_preset("paper")
    assert under.preparation.profiler is Profiler.PAPER
    assert under.model_copy(update={"preparation": fleet.preparation}) == fleet
    assert under.with_preset("paper") == under
    assert fleet.with_preset("thief@paper") == fleet.with_preset("uniform@paper") == under
    assert fleet.with_preset("uniform") == fleet


def test_fleet_under_preset_chooses_an_open_window(folder):
    raw = fleet_dict()
    raw.pop("window_s", None)
    under = load(folder, raw).with_preset("paper")
    assert under.window_s == 200.0
    assert under.is_set("window_s")


def test_load_fleet_finds_shipped_files(folder, monkeypatch):
    (folder / "shipped").mkdir()
    (folder / "golden.safetensors").rename(folder / "shipped" / "golden.safetensors")
    monkeypatch.setattr("ekya.config.fleet_reading.shipped_root", lambda: folder / "shipped")
    assert load(folder, fleet_dict()).golden.weights == folder / "shipped" / "golden.safetensors"


def test_dump_fleet_loads_to_the_same_fleet_from_any_folder(folder, tmp_path_factory):
    fleet = load(folder, fleet_dict())
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "fleet.yaml"
    elsewhere.write_text(dump_fleet(fleet))
    assert load_fleet(elsewhere) == fleet
    automatic = fleet.model_copy(update={"classes": None, "streams": fleet.streams[1:]})
    elsewhere.write_text(dump_fleet(automatic))
    assert load_fleet(elsewhere) == automatic


def test_fleet_configs_are_all_combinations_of_their_lists(folder):
    raw = fleet_dict() | {
        "retraining": {"epochs": [8, 4], "trainable_blocks": [0, 1], "data_fractions": [1.0]},
        "inference": {"every": [5, 1], "resolutions": [32]},
    }
    fleet = load(folder, raw)
    assert fleet.retrain_configs() == (
        RetrainConfig(4, 16, 0, 0, 1.0),
        RetrainConfig(4, 16, 0, 1, 1.0),
        RetrainConfig(8, 16, 0, 0, 1.0),
        RetrainConfig(8, 16, 0, 1, 1.0),
    )
    assert fleet.inference_configs() == (InferenceConfig(1, 32), InferenceConfig(5, 32))


def test_load_fleet_reads_processes(folder):
    assert load(folder, fleet_dict()).processes is Processes.AUTO
    together = load(folder, {**fleet_dict(), "processes": "gpu"})
    assert together.processes is Processes.GPU
    assert load(folder, dump_fleet(together)) == together
    refused = refusal(folder, {**fleet_dict(), "processes": "fleet"})
    assert "processes: 'fleet' is not possible" in refused
    assert "'auto', 'stream' or 'gpu'" in refused


def test_load_fleet_with_invalid_changes_names_them(folder):
    assert load(folder, fleet_dict(), gpus=2.0, windows=7).windows == 7
    sentence = refusal(folder, fleet_dict(), gpus=-0.1)
    assert sentence.startswith(" with gpus changed: gpus: -0.1 is too small")


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("gpu", 2, "there is no such key; did you mean gpus?"),
        ("golden.weight", "x", "there is no such key; did you mean weights?"),
        ("streams.cam-2.source.file", "a.mp4", "there is no such key; did you mean files?"),
        ("streams.cam-1.source.sed", 1, "there is no such key; did you mean seed?"),
        ("streams.cam-1.source.seed", -1, "-1 is too small; use at least 0"),
        ("preparation.share_milli", -900, "-900 is too small; use at least 1"),
        ("preparation.profiler", "magic", "'magic' is not possible; write 'ekya' or 'paper'"),
        ("preparation.fraction", 0.5, "0.5 is too large; use at most 0.15"),
        ("steal_milli", -100, "-100 is too small; use at least 1"),
        ("gpus", "many", "'many' is not possible; write a number"),
        ("gpus", float("nan"), "nan is not possible; write a number that is not infinite"),
        ("streams.cam-2.weight", 0, "0 is too small; use more than 0"),
        ("scheduler", "thief:part=3", "thief has no option 'part'; write thief alone"),
        ("placement", "heap", "'heap' is not possible; write 'pool', 'quantised' or 'best-fit'"),
        ("streams.cam-2.max_age_s", -1, "-1 is too small; use more than 0"),
        ("windows", 0, "0 is too small; use at least 1"),
        ("streams.cam-1.objects", {"every": 3}, "its source knows its objects; remove it"),
        (
            "streams.cam-2.objects.find",
            "it",
            "'it' is not possible; write 'detector+motion' or 'detector'",
        ),
        ("streams.cam-2.objects.every", 31, "31 is too large; use at most 30"),
        ("streams", [], "the list is empty; write at least one entry"),
        ("streams", 3, "3 is not possible; write a list"),
        ("streams.cam-2.source", {"kind": "vidio"}, f"there is no kind 'vidio'; use one of {KINDS}"),
        ("streams.cam-2.source", {"files": []}, "kind is missing; add it"),
        ("retraining.epochs", [4, 4], "a value stands there twice; keep one of them"),
        ("retraining.epochs", [4, 0], "[1]: 0 is too small; use at least 1"),
        (
            "edge.model",
            "resnet50",
            "there is no edge model 'resnet50'; use one of resnet18, mobilenet_v3_small, "
            "shufflenet_v2_x1_0, efficientnet_b0, resnet101, fastestdet, ssdlite320_mobilenet_v3_large",
        ),
        (
            "edge.model",
            "fastestdet",
            "fastestdet is a detector, and edge.task is classify; write edge.task: detect, or use one of "
            "resnet18, mobilenet_v3_small, shufflenet_v2_x1_0, efficientnet_b0, resnet101",
        ),
        ("edge.task", "find", "'find' is not possible; write 'classify' or 'detect'"),
        (
            "retraining.trainable_blocks",
            [0, 6],
            "6 is more than a resnet18 has; its blocks, from the last, are layer4, layer3, layer2, layer1, "
            "stem; use at most 5",
        ),
        ("classes", ["Car", "bus", "car"], "'Car' and 'car' differ in capitals only; keep one of them"),
        ("classes", "automatic", "write a list of names, or auto"),
        ("classes", "auto", "auto is for unlabelled video, and cam-1 is none; list the names"),
        ("golden.model", "vgg", "no golden model is called 'vgg'; use one of resnext29..."),
        ("name", "../up", "use letters, digits, '-', '_' and '.' only"),
        (
            "streams.cam-2.mask",
            [[0, 0], [640, 0], [640, 360.5]],
            "the point [640, 0] is outside of the picture; write x and y as parts of its width and height, "
            "from 0 to 1, and not in pixels",
        ),
        ("streams.cam-2.zone", [TRIANGLE, [[0, 0], [1, 1]]], "a polygon has 2 points; give it at least 3"),
        (
            "streams.cam-2.zone",
            [[0, 0, 1, 1], [1, 0], [1, 1]],
            "the point [0, 0, 1, 1] has 4 numbers...",
        ),
        ("streams.cam-2.mask", "left", "'left' is not possible; write a list"),
        (
            "streams.cam-2.mask",
            [TRIANGLE, [[0, 0], [0, 1], [1, 1]]],
            "nowhere in the picture would an object count; leave a part of it unmasked and in a zone",
        ),
        ("streams.cam-2.play.script", [{"at_s": 3}], "[0]: event is missing; add it"),
        ("streams.cam-2.play.script", [{"event": "rain"}], "[0]: there is no event 'rain'; use one of ..."),
        (
            "streams.cam-2.play.script",
            [{"event": "lost", "at_s": 3, "fors": 4}],
            "[0].fors: there is no such key...",
        ),
        (
            "streams.cam-2.play.script",
            [{"event": "joins", "at_s": 0}],
            "[0].at_s: 0 is too small; use more than 0...",
        ),
        (
            "streams.cam-2.play.script",
            [{"event": "joins", "at_s": 48}],
            "joins at 48 s comes 48 s into the run...",
        ),
        (
            "streams.cam-2.play.script",
            [{"event": "joins", "at_s": 3}] * 2,
            "a stream joins once; keep one...",
        ),
        (
            "lending.borrow_from",
            [{"url": "http://ekya:${T}@10.0.0.2:8470"}],
            "[0]: 10.0.0.2 would get samples and token unencrypted; use https, or write insecure: true...",
        ),
        (
            "lending.borrow_from",
            [{"url": "https://ekya:abc@10.0.0.2:8470"}],
            "[0]: it has a token; put that into a variable, say SOUTH_TOKEN, and write ${SOUTH_TOKEN}",
        ),
        ("lending.borrow_from", [{"url": "10.0.0.2"}], "[0]: write a URL with a port..."),
    ],
)
def test_load_fleet_with_a_bad_value_names_key_and_remedy(folder, key, value, sentence):
    assert_refused(folder, fleet_dict(), key, value, sentence)


def test_one_polygon_needs_no_list_of_its_own(folder):
    raw = changed("streams.cam-2.mask", TRIANGLE, changed("streams.cam-2.zone", [TRIANGLE[::-1], TRIANGLE]))
    assert refusal(folder, raw).startswith("streams.cam-2.zone: nowhere in the picture")
    fleet = load(folder, changed("streams.cam-2.zone", [[0, 0], [0, 1], [1, 1]], raw))
    mask, zone = ((0, 0), (1, 0), (1, 1)), ((0, 0), (0, 1), (1, 1))
    assert fleet.stream("cam-2").areas == Areas((mask,), (zone,))
    (folder / "again.yaml").write_text(dump_fleet(fleet))
    assert load_fleet(folder / "again.yaml") == fleet
    jsonschema.validate(raw, json.loads(dump_schema()))


def assert_refused(folder, raw, key, value, sentence):
    """Asserts what is said of a key; of a sentence that ends with an ellipsis, only how it begins."""
    said = refusal(folder, changed(key, value, raw))
    whole = key + (sentence if sentence.startswith("[") else f": {sentence}")
    assert said == whole or (whole.endswith("...") and said.startswith(whole.removesuffix("...")))


def detecting(**changes):
    """Returns a fleet of detectors as in a file, with these keys changed."""
    streams = [{"id": "cam-1", "source": {"kind": "video", "files": ["a.mp4"]}}]
    golden = {"model": "onnx", "weights": "golden.safetensors"}
    return {"golden": golden, "edge": {"task": "detect"}, "streams": streams} | changes


def test_load_fleet_of_detectors_has_their_defaults(folder):
    fleet = load(folder, detecting())
    assert (fleet.edge.model, fleet.edge.resolution) == ("fastestdet", 352)
    assert fleet.retraining.epochs == (10, 20, 40)
    assert fleet.retraining.trainable_blocks == (0, 1, 3)
    assert {gamma.batch_size for gamma in fleet.retrain_configs()} == {8}
    assert fleet.inference.resolutions == (352, 288, 224, 160)
    assert not any(fleet.is_set(key) for key in OPEN)


def test_load_fleet_borrows_only_where_samples_may_leave(folder):
    lending = {"borrow_from": [{"url": "http://ekya:${T}@127.0.0.1:8470"}]}
    with pytest.raises(UserError, match="samples_may_leave: who trains for these cameras gets their crops"):
        load(folder, fleet_dict() | {"lending": lending})
    lending["samples_may_leave"] = "crops"
    (lender,) = load(folder, fleet_dict() | {"lending": lending}).lending.borrow_from
    assert (lender.site, lender.mb_s) == ("127.0.0.1:8470", 12.5)


def test_load_fleet_notices_drift_unless_told_not_to(folder):
    drift = load(folder, fleet_dict() | {"drift": {"false_alarms_per_hour": 0.5}}).drift
    assert (drift.notice, drift.false_alarms_per_hour) == (True, 0.5)
    assert not load(folder, fleet_dict() | {"drift": {"notice": False}}).drift.notice
    assert refusal(folder, fleet_dict() | {"drift": {"false_alarms_per_hour": 0}}).startswith(
        "drift.false_alarms_per_hour: "
    )


def test_load_fleet_offers_lambdas_of_a_golden_detector_if_asked(folder):
    asked = {"every": [1, 2], "resolutions": [96], "golden_every": [9, 5]}
    fleet = load(folder, detecting(inference=asked))
    assert [config.name for config in fleet.inference_configs()] == [
        "every frame at 96 px",
        "every 2nd frame at 96 px",
        "golden detector on every 5th frame",
        "golden detector on every 9th frame",
    ]
    assert not any(config.by_golden for config in load(folder, detecting()).inference_configs())
    (folder / "again.yaml").write_text(dump_fleet(fleet))
    assert load_fleet(folder / "again.yaml") == fleet


@pytest.mark.parametrize(
    "golden", [{"model": "resnext29", "weights": "golden.safetensors"}, {"model": "file"}]
)
def test_load_fleet_refuses_lambdas_of_what_is_no_golden_detector(folder, golden):
    sentence = (
        "inference.golden_every: is for edge.task: detect with a detector as the golden model, such as onnx; "
        "remove it"
    )
    asked = {"inference": {"golden_every": [5]}}
    assert refusal(folder, fleet_dict() | asked) == sentence
    if golden["model"] == "file":
        golden = {**golden, "weights": "golden.safetensors"}
        assert refusal(folder, detecting(golden=golden) | asked) == sentence


def test_load_fleet_of_detectors_keeps_what_the_file_sets(folder):
    lists = {"retraining": {"epochs": [3]}, "inference": {"every": [4]}}
    fleet = load(folder, detecting(edge={"task": "detect", "resolution": 224}, **lists))
    assert (fleet.retraining.epochs, fleet.retraining.batch_sizes) == ((3,), (8,))
    assert (fleet.inference.every, fleet.inference.resolutions) == ((4,), (224, 192, 128, 96))
    again = load(folder, dump_fleet(fleet))
    assert again == fleet
    assert {key for key in OPEN if again.is_set(key)} == {"inference.every"}


@pytest.mark.parametrize("finest", range(96, 641, 32))
def test_frame_sides_are_multiples_of_32_from_the_finest_down(finest):
    sides = frame_sides(finest)
    assert sides[0] == finest
    assert all(above > below >= 32 and below % 32 == 0 for above, below in pairwise(sides))


NO_SIDE = "is no side of a detector's input; use multiples of 32 of edge.resolution, 352, at most"


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        (
            "edge.model",
            "resnet18",
            "resnet18 is a classifier, and edge.task is detect; write edge.task: classify, or use one of "
            "fastestdet, ssdlite320_mobilenet_v3_large",
        ),
        ("edge.resolution", 100, "100 is no side of a detector's input; use a multiple of 32 from 96 on"),
        ("edge.resolution", 704, "704 is too large; use at most 640"),
        ("inference.resolutions", [384], f"384 {NO_SIDE}"),
        ("inference.resolutions", [352, 100], f"100 {NO_SIDE}"),
        ("retraining.head_widths", [0, 64], "a detector has heads of its own; remove the key, or write [0]"),
        (
            "retraining.trainable_blocks",
            [6],
            "6 is more than a fastestdet has; its blocks, from the last, are spp, stage4, stage3, stage2, "
            "stem; use at most 5",
        ),
        ("classes", ["car", "background"], "a detector does not find 'background'; remove it"),
        (
            "golden.model",
            "resnext29",
            "resnext29 only names objects, and edge.task is detect; use a detector, such as onnx, or "
            "edge.task: classify",
        ),
        ("golden.frames_per_window", 3, "3 is too small; use at least 4"),
        ("golden.frames_per_window", 49, "49 is too large; use at most 48"),
        ("streams.cam-1.objects", {"every": 3}, "a detector finds the objects itself; remove it"),
    ],
)
def test_load_fleet_of_detectors_with_a_bad_value_names_the_key(folder, key, value, sentence):
    assert_refused(folder, detecting(), key, value, sentence)


def test_load_fleet_with_a_missing_key_names_it(folder):
    raw = fleet_dict()
    del raw["golden"]
    assert refusal(folder, raw) == "golden: this key is missing; add it"


def test_load_fleet_with_several_errors_counts_them(folder):
    assert refusal(folder, fleet_dict() | {"gpus": -1, "window_s": -1}).endswith("(and 1 more)")


def test_load_fleet_with_an_id_that_is_no_file_name_is_refused(folder):
    assert refusal(folder, changed("streams.cam-2.id", "../cam")).startswith("streams.../cam.id: stream id")
    assert refusal(folder, changed("streams.cam-2.id", "cam-1")) == (
        "streams: two streams are called cam-1; give each its own id"
    )


def test_load_fleet_refuses_pretraining_by_a_played_or_a_live_stream(folder):
    raw = fleet_dict()
    twice = refusal(folder, raw | {"pretraining": raw["streams"][:1]})
    assert twice == "pretraining: two streams are called cam-2; give each its own id"
    live = {"id": "gate", "source": {"kind": "camera", "url": "rtsp://cam/live"}}
    assert refusal(folder, raw | {"pretraining": [live]}) == (
        "pretraining.gate.source: a live camera brings no labels; name a labelled recording"
    )


@pytest.mark.parametrize("key", ["streams.cam-2.source.files", "golden.weights", "edge.weights"])
def test_load_fleet_with_a_missing_file_names_its_key(folder, key):
    for name, problem in (
        ("missing.mp4", f"missing.mp4 does not exist; correct the path, which begins at {folder}"),
        (".", ". is a folder; name a file in it"),
    ):
        assert_refused(folder, fleet_dict(), key, [name] if key.endswith("files") else name, problem)


def test_load_fleet_with_labels_and_a_lost_camera_is_refused(folder):
    play = {"script": [{"event": "lost", "at_s": 3, "for_s": 4}]}
    raw = changed("streams.cam-2.play", play)
    (folder / "labels.parquet").write_bytes(b"")
    raw["golden"] = {"model": "file", "weights": "labels.parquet"}
    assert refusal(folder, raw).startswith(
        "streams.cam-2.play.script: the golden model 'file' finds labels by"
    )


def test_load_fleet_checks_script_times_at_the_play_speed(folder):
    play = {"speed": 2, "script": [{"event": "joins", "at_s": 95}]}
    assert load(folder, changed("streams.cam-2.play", play)).stream("cam-2").play.joins_us == 47_500_000


def test_load_fleet_accepts_a_loss_after_the_run(folder):
    play = {"script": [{"event": "lost", "at_s": 95, "for_s": 4}]}
    outages = load(folder, changed("streams.cam-2.play", play)).stream("cam-2").play.outages_us
    assert outages == ((95_000_000, 99_000_000),)


def test_kept_fleet_names_its_schema_which_lies_beside_it(folder, tmp_path):
    fleet = load(folder, fleet_dict())
    write_fleet(tmp_path / "fleet.yaml", fleet)
    first = (tmp_path / "fleet.yaml").read_text().splitlines()[0]
    schema = json.loads((tmp_path / first.removeprefix("# yaml-language-server: $schema=")).read_text())
    assert "streams" in schema["properties"]
    assert load_fleet(tmp_path / "fleet.yaml") == fleet
    (tmp_path / "fleet.schema.json").write_text("of an earlier version")
    write_fleet(tmp_path / "fleet.yaml", fleet)
    assert json.loads((tmp_path / "fleet.schema.json").read_text()) == schema


def test_dump_fleet_keeps_open_sizes_open(folder):
    raw = fleet_dict()
    del raw["gpus"], raw["window_s"]
    fleet = load(folder, raw | {"preparation": {"share_milli": 400}})
    said = {key for key in OPEN if fleet.is_set(key)}
    assert said == {"preparation.share_milli"}
    again = load(folder, dump_fleet(fleet))
    assert {key for key in OPEN if again.is_set(key)} == said
    played = with_play(again, {"speed": 2.0})
    assert {key for key in OPEN if played.is_set(key)} == said


def test_load_fleet_refuses_shares_off_the_set_quantum(folder):
    sentence = refusal(folder, fleet_dict() | {"steal_milli": 75, "quantum_milli": 50})
    assert sentence == "steal_milli: 75 is not a multiple of quantum_milli, 50; make it one"
    assert load(folder, fleet_dict() | {"steal_milli": 75})


def test_load_fleet_with_too_few_gpus_says_how_many_fit(folder):
    raw = fleet_dict() | {"preparation": {"share_milli": 900}, "quantum_milli": 50}
    sentence = refusal(folder, raw | {"gpus": 0.95})
    assert "use at least 1, or a smaller preparation.share_milli" in sentence
    assert load(folder, raw | {"gpus": 1})


def test_load_fleet_fits_gpus_of_defaults_and_changes(folder):
    assert load(folder, fleet_dict() | {"gpus": 0.3})
    assert load(folder, fleet_dict() | {"preparation": {"share_milli": 900}}, gpus=0.3).gpus == 0.3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: x\nstreams: [\n", "line 3, column 1 is not YAML"),
        ("name: x\n\tgpus: 1\n", "line 2, column 1 is not YAML"),
        ("", "the file has no keys at its top, as in 'key: value'; add them"),
        ("- a\n- b\n", "the file has no keys at its top, as in 'key: value'; add them"),
        ("name: 2024-99-99\n", "this is not YAML (month must be in 1..12); correct it"),
        ("1: 2\n", "1: a key has to be text; remove it"),
    ],
)
def test_load_fleet_of_another_yaml_is_refused(folder, text, sentence):
    assert refusal(folder, text).startswith(sentence)


def test_load_fleet_of_an_unreadable_path_is_refused(folder):
    (folder / "fleet.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(UserError, match="byte 9 is not UTF-8; save the file as UTF-8 text"):
        load_fleet(folder / "fleet.yaml")
    with pytest.raises(UserError, match=r"none.yaml: there is no such file; check the path"):
        load_fleet(folder / "none.yaml")
    with pytest.raises(UserError, match="this is a folder, not a file"):
        load_fleet(folder)


KEYS = st.sampled_from([*FleetConfig.model_fields, "id", "source", "kind"])
SCALARS = st.none() | st.booleans() | st.floats() | st.sampled_from(["auto", "a.mp4", "video", "1"])
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=25)
@given(TREES)
def test_load_fleet_of_any_value_gives_a_fleet_or_one_sentence(tmp_path_factory, value):
    folder = tmp_path_factory.getbasetemp()
    for key in ("streams", "golden", "gpus", "classes"):
        try:
            load(folder, fleet_dict() | {key: value})
        except UserError as error:
            assert "\n" not in str(error)


def test_fleet_from_videos_makes_a_stream_per_video(folder, monkeypatch):
    monkeypatch.setattr("ekya.api.fleets.shipped_path", lambda _: shipped_fleet(folder))
    golden = folder / "golden.onnx"
    golden.write_bytes(b"")
    videos = [Camera([folder / "a.mp4", folder / "b.mp4"]), Camera(folder / "b.mp4")]
    fleet = make_fleet(videos, golden, task=Task.CLASSIFY)
    assert [stream.id for stream in fleet.streams] == ["cam-1", "cam-2"]
    assert fleet.streams[0].source.files == (folder / "a.mp4", folder / "b.mp4")
    assert (fleet.golden.model, fleet.golden.weights) == ("onnx", golden)
    assert (fleet.classes, fleet.windows) == (None, None)
    assert not any(fleet.is_set(key) for key in OPEN)
    assert fleet.edge.weights == folder / "golden.safetensors"
    assert make_fleet([Camera(folder / "a.mp4")], golden, {"windows": 3}).windows == 3


def test_fleet_from_videos_reads_a_golden_file_or_name(folder, monkeypatch):
    monkeypatch.setattr("ekya.api.fleets.shipped_path", lambda _: shipped_fleet(folder))
    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    golden = make_fleet([Camera(folder / "a.mp4")], name).golden
    assert (golden.model, golden.weights) == (name, None)
    golden = make_fleet([Camera(folder / "a.mp4")], f"{name}={folder / 'b.mp4'}").golden
    assert (golden.model, golden.weights) == (name, folder / "b.mp4")
    with pytest.raises(UserError, match=r"the given fleet: golden.weights: none.onnx does not exist"):
        make_fleet([Camera(folder / "a.mp4")], "none.onnx")
    with pytest.raises(UserError, match=r"the given fleet: streams.cam-1.source.files: c.mp4 does not exist"):
        make_fleet([Camera("c.mp4")], name)


def shipped_fleet(folder):
    path = folder / "shipped.yaml"
    path.write_text(yaml.safe_dump(fleet_dict() | {"edge": {"weights": "golden.safetensors"}}))
    return path


def test_fleet_from_videos_with_a_student_detects(folder):
    golden, student = folder / "golden.safetensors", folder / "student.onnx"
    student.touch()
    videos = [Camera(folder / "a.mp4")]
    for name in (str(student), f"fastestdet={student}"):
        edge = make_fleet(videos, golden, student=name).edge
        assert (edge.task, edge.model, edge.weights) == (Task.DETECT, "fastestdet", student)
    edge = make_fleet(videos, golden, student=f"ssdlite320_mobilenet_v3_large={student}").edge
    assert (edge.model, edge.resolution) == ("ssdlite320_mobilenet_v3_large", 320)
    assert make_fleet(videos, golden, task=Task.CLASSIFY).edge.model == "resnet18"


def test_fleet_from_videos_lets_the_golden_detector_answer_too(folder):
    golden, videos, student = (
        folder / "golden.safetensors",
        [Camera(folder / "a.mp4")],
        folder / "student.onnx",
    )
    student.touch()
    for named in (None, "base", str(student)):
        fleet = make_fleet(videos, golden, student=named)
        assert (fleet.edge.task, fleet.edge.weights) == (
            Task.DETECT,
            student if named == str(student) else None,
        )
        assert fleet.offers_golden
        assert not any(fleet.is_set(key) for key in OPEN)
    for other in (
        make_fleet(videos, f"file={golden}"),
        make_fleet(videos, golden, task=Task.CLASSIFY),
        make_fleet(videos, golden, {"inference": {"golden_every": []}}),
    ):
        assert not other.offers_golden


def test_fleet_from_videos_takes_a_student_of_the_model_that_it_names(folder):
    own, odd = folder / "own.safetensors", folder / "a=b.onnx"
    save_file({"w": np.zeros(1)}, own, {"architecture": "ssdlite320_mobilenet_v3_large"})
    odd.touch()
    golden, videos = folder / "golden.safetensors", [Camera(folder / "a.mp4")]
    assert make_fleet(videos, golden, student=str(own)).edge.model == "ssdlite320_mobilenet_v3_large"
    assert make_fleet(videos, golden, student=str(odd)).edge.weights == odd


def test_fleet_from_cameras_tells_videos_from_urls(folder):
    golden = folder / "golden.safetensors"
    fleet = make_fleet([*map(Camera, (folder / "a.mp4", "rtsp://10.0.0.5/live", "/dev/video0"))], golden)
    assert [stream.source.kind for stream in fleet.streams] == ["video", "camera", "camera"]
    assert fleet.streams[2].source.url == "/dev/video0"
    assert fleet.name == "cameras"


def test_load_fleet_moves_passwords_to_the_environment(folder, monkeypatch):
    for name in ("EKYA_CAM_1_LOGIN", "EKYA_CAM_1_2_LOGIN", "EKYA_CAM_1_DETECT_LOGIN"):
        monkeypatch.setenv(name, "")  # so that monkeypatch unsets it after the test
    raw = fleet_dict()
    for stream, name in zip(raw["streams"], ("cam-1", "cam_1"), strict=True):
        url = f"rtsp://admin:tops3cret-{name}@10.0.0.5/live"
        stream |= {"id": name, "source": {"kind": "camera", "url": url}}
    raw["streams"][0]["source"]["url_detect"] = "rtsp://viewer:tops3cret-sub@10.0.0.5/sub"
    fleet = load(folder, raw)
    assert fleet.streams[0].source.url_detect == "rtsp://${EKYA_CAM_1_DETECT_LOGIN}@10.0.0.5/sub"
    assert os.environ["EKYA_CAM_1_DETECT_LOGIN"] == "viewer:tops3cret-sub"
    assert [stream.analysed_url for stream in fleet.streams[:2]] == ["url_detect", "url"]
    assert fleet.streams[0].source.url == "rtsp://${EKYA_CAM_1_LOGIN}@10.0.0.5/live"
    assert fleet.streams[1].source.url == "rtsp://${EKYA_CAM_1_2_LOGIN}@10.0.0.5/live"
    assert os.environ["EKYA_CAM_1_2_LOGIN"] == "admin:tops3cret-cam_1"
    written = dump_fleet(fleet)
    assert "tops3cret" not in written + repr(fleet)
    (folder / "again.yaml").write_text(written)
    assert load_fleet(folder / "again.yaml") == fleet


@pytest.mark.parametrize("key", ["url", "url_detect"])
@pytest.mark.parametrize("url", ["rtsps:/admin:tops3cret@cam/", ["rtsp://admin:tops3cret@cam/"], {"a": 1}])
def test_load_fleet_with_a_bad_url_hides_its_password(folder, url, key):
    source = {"kind": "camera", "url": "rtsp://cam/live", key: url}
    said = refusal(folder, changed("streams.cam-2.source", source))
    assert said.startswith(f"streams.cam-2.source.{key}: ")
    assert "tops3cret" not in said


@pytest.mark.parametrize("key", ["url", "url_detect"])
def test_added_camera_has_no_password_in_its_request(folder, key):
    source = {"kind": "camera", "url": "rtsp://cam/live", key: "rtsp://me:tops3cret@cam/live"}
    with pytest.raises(UserError, match=f"^key 'source.{key}': it has a password; put that into") as refused:
        with_stream(load(folder, fleet_dict()), {"id": "gate", "source": source})
    assert "tops3cret" not in str(refused.value)


def test_load_fleet_imports_no_engine() -> None:
    code = (
        "import sys\n"
        "from ekya.config.fleet_file import DEFAULT_FLEET\n"
        "from ekya.config.fleet_reading import load_fleet\n"
        "from ekya.config.shipped import shipped_path\n"
        "assert load_fleet(shipped_path(DEFAULT_FLEET)).streams\n"
        "sys.exit(', '.join({'ray', 'torch', 'torchvision', 'onnxruntime'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_load_fleet_reacts_to_nothing_that_it_does_not_notice(folder):
    assert load(folder, fleet_dict()).drift.reacts
    assert not load(folder, fleet_dict(), drift={"notice": False}).drift.reacts


def test_run_of_a_looped_recording_needs_a_number_of_windows(folder):
    fleet = with_play(make_fleet([Camera(folder / "a.mp4")], folder / "golden.safetensors"), {"loop": True})
    with pytest.raises(UserError, match=r"cam-1 is looped and never ends; .* or use ekya serve"):
        require_end(fleet)
    require_end(fleet.model_copy(update={"windows": 3}))
