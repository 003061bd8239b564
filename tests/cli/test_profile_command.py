"""Tests of ``ekya profile``: the file is written after every stream, and a recording can be resumed."""

import json

import pytest

import ekya.cli.profile
from ekya import cli
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import Family
from ekya.core.trace import BASE, Epoch, Standing, Start, StreamTrace, StreamWindow, Trace, Training
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption
from ekya.results.storage.trace_file import read_trace
from ekya.simulation.emulated.record_trace import Extent, with_stream

GAMMA, LAMBDA = RetrainConfig(2, 16, 0, 0, 1.0), InferenceConfig(1, 32)
EMPTY = Trace(1_000_000, "a device", ("car",), (GAMMA,), (LAMBDA,), ())


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
        starts=(Start(BASE, Standing(index, 0.5, 0.4)),),
        trainings=(Training(Family(0, 0, 16), 1.0, BASE, epochs),) if index else (),
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
        interrupted_after = None

        def __call__(self, fleet, seed, extent, before, keep, progress, card):
            self.asked, self.before = (fleet.name, fleet.windows, seed, extent), before
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
    monkeypatch.setattr(ekya.cli.profile, "record_fleet", made)
    return made


def test_arguments_reach_the_recorder_and_the_trace_is_told_in_numbers(recorder, tmp_path, capfd):
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


def test_what_was_finished_before_ctrl_c_is_a_trace_and_can_be_completed(recorder, tmp_path, capfd):
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


def test_resuming_without_a_file_begins(recorder, tmp_path):
    assert cli.main(["profile", "--out", str(tmp_path / "p.parquet"), "--resume"]) == 0
    assert recorder.before is None


@pytest.mark.parametrize(
    ("name", "says"), [("no/where/p.parquet", "there is no folder"), ("", "this is a folder")]
)
def test_where_nothing_can_be_written_nothing_is_recorded(recorder, tmp_path, capfd, name, says):
    assert cli.main(["profile", "--out", str(tmp_path / name), "--resume"]) == cli.USER_ERROR
    assert says in capfd.readouterr().err
    assert recorder.asked is None


def test_every_stream_keeps_its_own_windows():
    trace = with_stream(with_stream(EMPTY, stream_of("b", 4)), stream_of("a", 2))
    assert [(stream.stream, len(stream.windows)) for stream in trace.streams] == [("a", 2), ("b", 4)]
    assert trace.windows == 4
