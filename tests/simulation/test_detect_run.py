"""A whole run on virtual time whose edge model detects, on real video with a real golden detector."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from pyarrow import parquet

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_sections import StreamConfig
from ekya.core.commands import StartRetraining
from ekya.core.configs import GOLDEN_RESOLUTION
from ekya.core.errors import UserError
from ekya.core.events import InferenceProfiled, LabelsReady, ModelSwapped, RetrainProgress
from ekya.core.objects import DOUBTFUL
from ekya.core.trace import BASE
from ekya.core.units import FULL_GPU_MILLI
from ekya.models.golden.detections import ObjectDetector
from ekya.models.golden.onnx_detector import OnnxDetector
from ekya.pipeline.collector import BURST_FRAMES
from ekya.pipeline.costs import load_card
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.scoring import labelled_in
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions, read_reference
from ekya.results.storage.trace_file import read_trace, write_trace
from ekya.simulation.emulated.record_trace import Extent, record_fleet
from ekya.simulation.emulated.run import emulate
from ekya.simulation.trace.simulate import Conditions, simulate

pytestmark = [pytest.mark.live, pytest.mark.virtual]

SEED = 3

FAR = (((0.0, 0.0), (1.0, 0.0), (1.0, 0.2), (0.0, 0.2)),)


@pytest.fixture(scope="module")
def fleet(data_dir):
    """One camera on a motorway slowed down, two short windows."""
    weights = data_dir / "weights"
    return FleetConfig.model_validate(
        {
            "name": "motorway",
            "classes": ["person", "car", "bus", "truck"],
            "window_s": 12,
            "windows": 2,
            "preparation": {"share_milli": 900, "fraction": 0.15},
            "golden": {
                "model": "onnx",
                "weights": weights / "deimv2_hgnetv2_femto_coco.onnx",
                "frames_per_window": 12,
            },
            "edge": {"task": "detect", "weights": weights / "FastestDet_coco.safetensors"},
            "retraining": {"epochs": [20], "trainable_blocks": [0], "data_fractions": [1.0]},
            "inference": {"every": [1, 2], "resolutions": [352, 224]},
            "streams": [
                {
                    "id": "camera",
                    "source": {"kind": "video", "files": [data_dir / "videos/degirum_Traffic.mp4"]},
                    "play": {"speed": 0.15},
                }
            ],
        }
    )


@pytest.fixture(scope="module")
def asked():
    """Number of pictures that the golden detector has analysed."""
    return []


@pytest.fixture(scope="module")
def ran(fleet, asked, tmp_path_factory):
    """Folder and summary of a run."""
    folder = RunFolder.create_numbered(tmp_path_factory.mktemp("runs"), "motorway")
    detect = OnnxDetector.detect_objects

    def counted(self: ObjectDetector, image: np.ndarray):
        asked.append(image.shape)
        return detect(self, image)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(OnnxDetector, "detect_objects", counted)
        summary = emulate(folder, fleet, "ekya", SEED, lambda batch, step: None)
    return folder, summary


class Quiet:
    """Progress of a recording that is not shown."""

    def expect(self, stream, trainings):
        pass

    def trained(self, what):
        pass


@pytest.fixture(scope="module")
def brief(fleet):
    """The same fleet with enough time to try every γ, and with shorter ones."""
    preparation = fleet.preparation.model_copy(update={"fraction": 0.4})
    retraining = fleet.retraining.model_copy(update={"epochs": (3, 6)})
    return fleet.model_copy(update={"preparation": preparation, "retraining": retraining})


@pytest.fixture(scope="module")
def briefly_ran(brief, ran, tmp_path_factory):
    """Folder and summary of a run of it; its reference is that of the first run."""
    folder = RunFolder.create_numbered(tmp_path_factory.mktemp("brief"), "motorway")
    shutil.copyfile(ran[0].reference("camera"), folder.reference("camera"))
    return folder, emulate(folder, brief, "ekya", SEED, lambda batch, step: None)


@pytest.fixture(scope="module")
def traced(brief, tmp_path_factory):
    """Its trace, as it is read from its file."""
    file = tmp_path_factory.mktemp("traced") / "profiles.parquet"
    record_fleet(brief, SEED, Extent(), None, lambda trace: write_trace(file, trace), Quiet())
    return read_trace(file)


@pytest.fixture(scope="module")
def again(fleet, ran, tmp_path_factory):
    """Folder of a second run with the same seed; its reference is that of the first."""
    folder = RunFolder.create_numbered(tmp_path_factory.mktemp("again"), "motorway")
    shutil.copyfile(ran[0].reference("camera"), folder.reference("camera"))
    emulate(folder, fleet, "ekya", SEED, lambda batch, step: None)
    return folder


@pytest.fixture(scope="module")
def masked_ran(fleet, tmp_path_factory):
    """Folder and summary of a run of the same fleet, where what is far away is masked."""
    folder = RunFolder.create_numbered(tmp_path_factory.mktemp("masked"), "motorway")
    stream = fleet.streams[0].model_copy(update={"mask": FAR})
    near = fleet.model_copy(update={"streams": (stream,)})
    return folder, emulate(folder, near, "ekya", SEED, lambda batch, step: None)


def test_masked_part_has_no_labels_no_answers_and_does_not_count(ran, masked_ran):
    folder, summary = masked_ran
    answers = read_predictions(folder.predictions("camera"))
    labels = labelled_in(folder, "camera")
    shown = labels.boxes[(labels.boxes != 0).any(axis=1)]
    base = read_predictions(folder.without_retraining("camera")).boxes
    for boxes in (answers.boxes, base, shown):
        assert len(boxes)
        assert not is_far(boxes).any()
    # The reference has the same boxes as without a mask, and those far away are doubtful.
    whole, near = (read_reference(one.reference("camera")) for one in (ran[0], folder))
    whole = whole.select_frames(near.frame)
    objects = whole.classes != DOUBTFUL
    assert is_far(whole.boxes[objects]).mean() > 0.3
    kept = whole.boxes[objects & ~is_far(whole.boxes)]
    assert np.array_equal(near.boxes[near.classes != DOUBTFUL], kept)
    assert len(near.boxes) == len(whole.boxes)
    # So the run is scored as if there were only what is near.
    shows = np.repeat(near.frame, np.diff(near.offsets))[near.classes != DOUBTFUL]
    assert summary["streams"]["camera"]["counted_objects"] == (~np.isin(shows, labels.frame)).sum()
    assert summary["mean_accuracy"] > 0.3


def is_far(boxes):
    """Returns which of (N, 4) boxes stand in the upper fifth of a picture of 360 pixels."""
    return boxes[:, 3] < 72


def test_run_with_the_same_seed_gives_the_same_bytes(ran, again):
    first, _ = ran
    assert again.path != first.path
    for of in (
        lambda folder: folder.predictions("camera"),
        lambda folder: folder.without_retraining("camera"),
    ):
        assert of(again).read_bytes() == of(first).read_bytes()
    assert again.journal.read_bytes() == first.journal.read_bytes()
    summaries = [json.loads(folder.summary.read_text()) for folder in (first, again)]
    for summary in summaries:
        assert summary.pop("host")["wall_s"] > 0
    assert json.dumps(summaries[0]) == json.dumps(summaries[1])


def test_golden_detector_never_runs_in_inference(ran, asked):
    folder, summary = ran
    frames = summary["frames"]
    assert (frames["analysed"], frames["lost"]) == (frames["arrived"], 0)
    labels = [event for step in read_journal(folder.journal)[2] for event in step.events]
    labelled = sum(event.golden_calls for event in labels if isinstance(event, LabelsReady))
    assert labelled == summary["golden"]["labelled_frames"] == 12 * 2, "of window 0, and after it"
    # The rest are the reference, one picture for each frame, made when the run is over; and a burst that was
    # labelled when the time for preparation ended counts nowhere.
    assert (
        summary["golden"]["calls"]
        <= len(asked) - frames["arrived"]
        <= summary["golden"]["calls"] + BURST_FRAMES
    )


def test_adapted_student_beats_its_base_on_the_same_frames(ran):
    folder, summary = ran
    swaps = [
        event
        for step in read_journal(folder.journal)[2]
        for event in step.events
        if isinstance(event, ModelSwapped)
    ]
    assert swaps, "the base is weak here, so a retraining serves"
    assert summary["task"] == "detect"
    assert summary["streams"]["camera"]["gain"] > 0.02


@pytest.mark.parametrize(("times", "by_golden"), [(1.0, True), (60.0, False)])
def test_planner_takes_a_cheap_golden_detector_and_no_dear_one(fleet, ran, tmp_path, times, by_golden):
    """A golden frame is charged as 65 ms, and as 4 s: more than one frame in three leaves time for."""
    lists = fleet.inference.model_copy(update={"golden_every": (3,)})
    offered = fleet.model_copy(update={"inference": lists, "windows": 1})
    folder = RunFolder.create_numbered(tmp_path, "offered")
    first_window = parquet.read_table(ran[0].reference("camera"), filters=[("t_us", "<", 12_000_000)])
    parquet.write_table(first_window, folder.reference("camera"))
    card = load_card()
    priced = replace(card, detector_ops_per_s=card.detector_ops_per_s / times)
    summary = emulate(folder, offered, "ekya", 3, lambda batch, step: None, priced)
    answers = read_predictions(folder.predictions("camera"))
    golden, own = answers.resolution == GOLDEN_RESOLUTION, answers.answered_by == answers.frame
    assert (golden & answers.analysed).any() == (golden & own & ~answers.analysed).any() == by_golden
    configs = [window["lambda"] for window in summary["streams"]["camera"]["windows"]]
    assert all((one == {"every": 3, "resolution": 0}) == by_golden for one in configs)
    if by_golden:
        # The wrong fifth is of frames without boxes of their own, and of the student's during preparation.
        assert summary["mean_accuracy"] > 0.75
        # Next to nothing: the golden detector would have answered so without any retraining.
        assert abs(summary["streams"]["camera"]["gain"]) < 0.05
        assert summary["streams"]["camera"]["student_without_retraining"] < 0.5


def test_boxes_of_answers_are_inside_the_frame(ran):
    answers = read_predictions(ran[0].predictions("camera"))
    assert len(answers.boxes) > 0
    assert (answers.boxes >= 0).all()
    assert (answers.boxes[:, [0, 2]] <= 960).all()
    assert (answers.boxes[:, [1, 3]] <= 540).all()
    assert ((answers.classes >= 0) & (answers.classes < 4)).all()
    assert set(answers.resolution.tolist()) <= {352, 224}


@pytest.mark.long
def test_recorded_trace_equals_events_of_a_run(brief, traced, tmp_path):
    """Every label count, λ profile and epoch of the run is in the trace, with the same figures.

    The run labels no window inside, as a trace does.
    """
    (stream,) = traced.streams
    window = stream.windows[1]
    unnoticed = brief.drift.model_copy(update={"notice": False})
    alike = brief.model_copy(update={"drift": unnoticed})
    folder = RunFolder.create_numbered(tmp_path, "motorway")
    emulate(folder, alike, "ekya", SEED, lambda batch, step: None)
    steps, started, seen = read_journal(folder.journal)[2], {}, set()
    for step in steps:
        for event in step.events:
            match event:
                case LabelsReady():
                    assert (event.training_crops, event.validation_crops, event.gpu_s) == (
                        window.training_crops,
                        window.validation_crops,
                        window.labelling_gpu_s,
                    )
                    assert event.serving_accuracy == window.start_of(BASE).validation_accuracy
                case InferenceProfiled():
                    assert (event.options, event.gpu_s) == (window.inference_profiled, window.inference_gpu_s)
                case RetrainProgress():
                    training = window.best_training(started[event.job], BASE)
                    epoch = training.epochs[event.epoch - 1]
                    assert epoch.gpu_s == pytest.approx(event.gpu_s)
                    assert epoch.standings[0].validation_accuracy == event.validation_accuracy
                case _:
                    continue
            seen.add(type(event))
        started |= {
            command.job: command.config for command in step.commands if isinstance(command, StartRetraining)
        }
    assert seen == {LabelsReady, InferenceProfiled, RetrainProgress}


@pytest.mark.long
def test_simulated_schedulers_reach_what_the_run_reached(brief, briefly_ran, traced):
    _, summary = briefly_ran
    conditions = Conditions(
        gpus=brief.capacity_milli / FULL_GPU_MILLI,
        preparation_fraction=brief.preparation.fraction,
        preparation_share_milli=brief.preparation.share_milli,
    )
    played = {name: simulate(traced, make_scheduler(name), conditions) for name in ("ekya", "no-retrain")}
    assert played["ekya"].mean_accuracy > played["no-retrain"].mean_accuracy + 0.01
    assert played["ekya"].mean_accuracy == pytest.approx(summary["mean_accuracy"], abs=0.05)
    base = summary["streams"]["camera"]["without_retraining"]
    assert played["no-retrain"].mean_accuracy == pytest.approx(base, abs=0.05)


def test_recording_lambda_of_the_golden_detector_beside_known_objects_is_refused(fleet):
    lists, source = {"golden_every": (3,)}, {"source": {"kind": "synthetic_city", "seed": 1}}
    says = r"key 'inference.golden_every': .* and the objects of camera are known; remove it"
    streams = (StreamConfig.model_validate({**fleet.streams[0].model_dump(), **source}),)
    inference = fleet.inference.model_copy(update=lists)
    offered = fleet.model_copy(update={"inference": inference, "streams": streams})
    with pytest.raises(UserError, match=says):
        record_fleet(offered, SEED, Extent(), None, lambda trace: None, Quiet())
