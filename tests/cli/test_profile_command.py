"""Tests of ``ekya profile``: the file is written after every stream, and a recording can be resumed."""

import json

import pytest
from commands import empty_trace

from ekya import cli
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import Family
from ekya.core.trace import BASE, Epoch, RecordedStart, RecordedTraining, Standing, StreamTrace, StreamWindow
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption
from ekya.models.edge.architecture_table import Task
from ekya.results.storage.trace_file import read_trace
from ekya.simulation.emulated.record_trace import Extent, with_stream

GAMMA, LAMBDA = RetrainConfig(2, 16, 0, 0, 1.0), InferenceConfig(1, 32)
EMPTY = empty_trace(retrain_configs=(GAMMA,), inference_configs=(LAMBDA,))


def window_of(index):
    epochs = tuple(Epoch(epoch, 0.5 * epoch, (Standing(index, 0.8, 0.7),)) for epoch in (1, 2))
    return StreamWindow(
        window=index,
        class_histogram=(9,),
        training_crops=8 if index else 0,
        validation_crops=2 if index else 0,
        labelling_gpu_s=0.25 if index else 0.0,
        inference_gpu_s=0.5 if index else 0.0,
        inference=(InferenceOption(LAMBDA, 1.0, 100),),
        inference_profiled=(),
        starts=(RecordedStart(BASE, Standing(index, 0.5, 0.4)),),
        trainings=(RecordedTraining(Family(0, 0, 16), 1.0, BASE, epochs),) if index else (),
        trials=(),
    )


def stream_of(name, windows=3):
    return StreamTrace(StreamId(name), 10.0, tuple(window_of(index) for index in range(windows)))


@pytest.fixture
def recorder(monkeypatch):
    """Fake recorder of two streams that keeps its arguments and can be interrupted."""

    class Recorder:
        asked = None
        before = None
        fleet = None
        interrupted_after = None

        def __call__(self, fleet, seed, extent, before, keep, progress, card):
            self.asked, self.before = (fleet.name, fleet.windows, seed, extent), before
            self.fleet = fleet
            trace = before or EMPTY
            for name in ("cam-2", "cam-1"):
                if name in {stream.stream for stream in trace.streams}:
                    continue
                progress.expect(StreamId(name), 1)
                progress.trained("something")
                trace = with_stream(trace, stream_of(name))
                keep(trace)
                if name == self.interrupted_after:
                    raise KeyboardInterrupt
            return trace

    made = Recorder()
    monkeypatch.setattr("ekya.api.profiling.record_fleet", made)
    return made


def test_profile_passes_its_options_and_reports_counts(recorder, tmp_path, capfd):
    file = tmp_path / "p.parquet"
    arguments = ["profile", "--out", str(file), "--seed", "4", "--windows", "3", "--json", "-"]
    assert cli.main([*arguments, "--streams", "cam-1,cam-2", "--families", "1", "--every-start"]) == 0
    extent = Extent((StreamId("cam-1"), StreamId("cam-2")), 1, True)
    assert recorder.asked == ("synthetic-city", 3, 4, extent)
    said = json.loads(capfd.readouterr().out)
    assert said == {
        "streams": ["cam-1", "cam-2"],
        "windows": 3,
        "retrain_configs": 1,
        "trainings": 4,
        "epochs": 8,
        "training_gpu_s": 4.0,
        "labelling_gpu_s": 1.0,
        "profiling_gpu_s": 2.0,
    }
    assert read_trace(file).streams == (stream_of("cam-1"), stream_of("cam-2"))


@pytest.mark.parametrize(
    ("options", "task", "weights"),
    [
        (["--student", "small.safetensors"], Task.DETECT, "small.safetensors"),
        (["--task", "classify"], Task.CLASSIFY, None),
        ([], Task.DETECT, None),
    ],
)
def test_profile_of_videos_takes_student_and_task(recorder, tmp_path, monkeypatch, options, task, weights):
    monkeypatch.setattr("ekya.api.profiling.fitted_by_card", lambda fleet, card: (fleet, ()))
    monkeypatch.chdir(tmp_path)
    for name in ("north.mp4", "large.onnx", "small.safetensors"):
        (tmp_path / name).write_bytes(b"")
    arguments = ["profile", "--video", "north.mp4", "--golden", "large.onnx", "--out", "p.parquet"]
    assert cli.main([*arguments, *options]) == 0
    edge = recorder.fleet.edge
    assert edge.task is task
    assert weights is None or edge.weights.name == weights


def test_profile_after_ctrl_c_leaves_a_trace_to_resume(recorder, tmp_path, capfd):
    file = tmp_path / "p.parquet"
    recorder.interrupted_after = "cam-2"
    assert cli.main(["profile", "--out", str(file)]) == cli.STOPPED
    partial = read_trace(file)
    assert [stream.stream for stream in partial.streams] == ["cam-2"]

    assert cli.main(["profile", "--out", str(file)]) == cli.USER_ERROR
    assert "--resume" in capfd.readouterr().err
    assert cli.main(["profile", "--out", str(file), "--resume"]) == 0
    assert recorder.before == partial
    assert [stream.stream for stream in read_trace(file).streams] == ["cam-1", "cam-2"]


def test_profile_with_resume_but_no_file_begins_anew(recorder, tmp_path):
    assert cli.main(["profile", "--out", str(tmp_path / "p.parquet"), "--resume"]) == 0
    assert recorder.before is None


@pytest.mark.parametrize(
    ("name", "says"), [("no/where/p.parquet", "there is no folder"), ("", "this is a folder")]
)
def test_profile_to_an_unwritable_path_records_nothing(recorder, tmp_path, capfd, name, says):
    assert cli.main(["profile", "--out", str(tmp_path / name), "--resume"]) == cli.USER_ERROR
    assert says in capfd.readouterr().err
    assert recorder.asked is None


def test_with_stream_keeps_the_windows_of_each_stream():
    trace = with_stream(with_stream(EMPTY, stream_of("b", 4)), stream_of("a", 2))
    assert [(stream.stream, len(stream.windows)) for stream in trace.streams] == [("a", 2), ("b", 4)]
    assert trace.windows == 4
