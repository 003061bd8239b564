"""Tests of ``profiles.parquet``: it is read as it was written, and errors name the damage."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.errors import UserError
from ekya.core.profile import Family, FamilyCost, FamilyCurve, Profiler
from ekya.core.trace import (
    BASE,
    Epoch,
    LeftOut,
    Origin,
    Predicted,
    RecordedStart,
    RecordedTraining,
    Standing,
    StreamTrace,
    StreamWindow,
    Trace,
    Trial,
)
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption
from ekya.results.storage.trace_file import read_trace, write_trace
from ekya.simulation.trace.generate import generate_trace
from ekya.simulation.trace.generator_parameters import MEASURED_SPEED

FAMILY = Family(1, 64, 16)
GAMMA = RetrainConfig(2, 16, 64, 1, 0.5)
LAMBDA = InferenceConfig(2, 32)

parts = st.integers(0, 8).map(lambda eighths: eighths / 8)
amounts = st.integers(0, 64).map(lambda eighths: eighths / 8)


measured = st.sampled_from([(None, ()), (0.25, ()), (0.625, (0.25, 1.0))])


@st.composite
def standings(draw, first):
    count = draw(st.integers(1, 2))
    return tuple(Standing(first + later, draw(parts), *draw(measured)) for later in range(count))


@st.composite
def stream_windows(draw, index):
    trainings = tuple(
        RecordedTraining(
            FAMILY,
            0.5,
            started_from,
            tuple(
                Epoch(number, draw(amounts), draw(standings(index)))
                for number in range(1, draw(st.integers(1, 3)) + 1)
            ),
        )
        for started_from in draw(st.sampled_from([(), (BASE,), (BASE, Origin(0), Origin(0, FAMILY))]))
    )
    trials = draw(
        st.sampled_from(
            [
                (),
                (Trial(FAMILY, 0.5),),
                (
                    Trial(FAMILY, 0.5),
                    Trial(FAMILY, 0.5, None, (Predicted(GAMMA, 0.5, 1.0),), Origin(0, FAMILY)),
                ),
                (Trial(FAMILY, 0.5, FamilyCurve(16, 64, 1, 64, (0.25, 0.5), 0.125, 0.25, 80, 0.5, 0.0625)),),
                (
                    Trial(
                        FAMILY, 0.5, None, (Predicted(GAMMA, 0.75, 4.0, 0.0625), Predicted(GAMMA, 0.5, 1.0))
                    ),
                ),
                tuple(
                    Trial(FAMILY, 0.5, None, (Predicted(GAMMA, 0.5, gpu_s),), BASE, profiler)
                    for gpu_s, profiler in ((1.0, Profiler.EKYA), (2.0, Profiler.PAPER))
                ),
            ]
        )
    )
    measured = (InferenceOption(LAMBDA, draw(parts), draw(st.integers(0, 1500)), draw(st.integers(0, 99))),)
    return StreamWindow(
        window=index,
        class_histogram=tuple(draw(st.lists(st.integers(0, 9), max_size=2))),
        training_crops=draw(st.integers(0, 99)),
        validation_crops=draw(st.integers(0, 99)),
        labelling_gpu_s=draw(amounts),
        inference_gpu_s=draw(amounts),
        inference=measured,
        inference_profiled=draw(st.sampled_from([(), measured])),
        starts=(RecordedStart(BASE, draw(standings(index))[0]),),
        trainings=trainings,
        trials=trials,
        objects_by_part=draw(st.sampled_from([(), (0, 7), (3, 2, 1)])),
    )


@st.composite
def traces(draw):
    ends = draw(st.lists(st.tuples(st.integers(1, 2), st.sampled_from([0.25, 1.0])), max_size=2))
    return Trace(
        window_us=1_000_000,
        gpu="one core",
        classes=("car", "bus"),
        retrain_configs=(GAMMA,),
        inference_configs=(LAMBDA,),
        streams=tuple(
            StreamTrace(
                StreamId(f"cam-{place}"),
                25.0,
                tuple(draw(stream_windows(index)) for index in range(windows)),
                last_part,
                draw(st.sampled_from([(), (LeftOut(7, (0.5, 1.0, 20.25, 30.0)),)])),
            )
            for place, (windows, last_part) in enumerate(ends)
        ),
        training_speed=MEASURED_SPEED,
        family_costs=draw(st.sampled_from([(), (FamilyCost(FAMILY, 0.5, 0.25),)])),
    )


@settings(max_examples=30)
@given(traces())
def test_trace_file_written_trace_is_read_back(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("trace") / "profiles.parquet"
    write_trace(path, trace)
    assert read_trace(path) == trace


def test_trace_file_same_trace_gives_same_bytes(tmp_path):
    one, other = tmp_path / "one.parquet", tmp_path / "other.parquet"
    write_trace(one, generate_trace(1, 2, 3))
    write_trace(other, generate_trace(1, 2, 3))
    assert one.read_bytes() == other.read_bytes()


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "profiles.parquet"
    write_trace(path, generate_trace(1, 2, 2))
    return path


def change(path, column, row, value):
    """Replaces the value of one cell; rows count from 1."""
    table = pq.read_table(path)
    values = table.column(column).to_pylist()
    values[row - 1] = value
    at = table.schema.names.index(column)
    field = table.schema.field(column)
    pq.write_table(table.set_column(at, field, pa.array(values, field.type)), path)


def row_of(path, kind):
    return pq.read_table(path).column("kind").to_pylist().index(kind) + 1


@pytest.mark.parametrize(
    ("kind", "column", "value", "says"),
    [
        ("start", "validation_accuracy", 1.5, "less than or equal to 1"),
        ("epoch", "gpu_s", float("nan"), "finite number"),
        ("epoch", "gpu_s", None, "needs it"),
        ("epoch", "epochs", 77, "epoch 1 of this training is missing"),
        ("inference", "every", 0, "greater than or equal to 1"),
        ("inference", "kind", "guess", "there is no 'guess'"),
        ("window", "kind", "start", "a row of kind start needs it"),
        ("trial", "batch_size", 0, "greater than or equal to 1"),
        ("window", "stream", "stranger", "not a stream of this trace"),
        ("start", "accuracy_by_part", [0.5, 1.5], "less than or equal to 1"),
        ("window", "objects_by_part", [3, -1], "greater than or equal to 0"),
    ],
)
def test_trace_file_impossible_value_names_row_and_column(written, kind, column, value, says):
    row = row_of(written, kind)
    change(written, column, row, value)
    with pytest.raises(UserError, match=says) as refused:
        read_trace(written)
    assert str(written) in str(refused.value)
    assert "row" in str(refused.value)
    assert "column" in str(refused.value)


def test_trace_file_missing_window_is_named(written):
    table = pq.read_table(written)
    keep = [
        not (stream == "cam-2" and window == 0)
        for stream, window in zip(
            table.column("stream").to_pylist(), table.column("window").to_pylist(), strict=True
        )
    ]
    pq.write_table(table.filter(pa.array(keep)), written)
    with pytest.raises(UserError, match="stream cam-2 does not have every window from 0 to 1"):
        read_trace(written)


@pytest.mark.parametrize("part", [0.0, 1.5])
def test_trace_file_last_part_outside_window_is_refused(tmp_path, part):
    made = generate_trace(1, 1, 1)
    path = tmp_path / "profiles.parquet"
    write_trace(path, replace(made, streams=(replace(made.streams[0], last_part=part),)))
    with pytest.raises(UserError, match="its metadata is not that of a trace"):
        read_trace(path)


def test_trace_file_without_last_part_is_read(written):
    table = pq.read_table(written)
    head = json.loads(table.schema.metadata[b"ekya.trace"])
    del head["family_costs"]
    for stream in head["streams"]:
        del stream["last_part"]
    pq.write_table(table.replace_schema_metadata({b"ekya.trace": json.dumps(head)}), written)
    assert read_trace(written) == generate_trace(1, 2, 2)


def test_trace_file_of_earlier_version_is_read(tmp_path):
    curve = FamilyCurve(16, 64, 1, 64, (0.25, 0.5), 0.125, 0.25, None, 0.5, 0.0625)
    made = generate_trace(1, 1, 1)
    window = replace(made.streams[0].windows[0], trials=(Trial(FAMILY, 0.5, curve),))
    path = tmp_path / "old.parquet"
    write_trace(path, replace(made, streams=(replace(made.streams[0], windows=(window,)),)))
    pq.write_table(
        pq.read_table(path).drop_columns(["fixed_epoch_gpu_s", "fixed_prepare_gpu_s", "profiler"]), path
    )
    (trial,) = read_trace(path).streams[0].windows[0].trials
    assert trial.curve == replace(curve, fixed_prepare_gpu_s=0.0, fixed_epoch_gpu_s=0.0)


def test_trace_file_half_file_or_other_table_is_refused(tmp_path, written):
    half = tmp_path / "half.parquet"
    half.write_bytes(written.read_bytes()[:500])
    with pytest.raises(UserError, match="not a whole Parquet file"):
        read_trace(half)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    with pytest.raises(UserError, match="columns"):
        read_trace(other)
    bare = tmp_path / "bare.parquet"
    pq.write_table(pq.read_table(written).replace_schema_metadata(None), bare)
    with pytest.raises(UserError, match="metadata"):
        read_trace(bare)


def test_trace_file_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="nothing"):
        read_trace(tmp_path / "nothing.parquet")


def test_trace_file_failed_write_raises_user_error(tmp_path):
    with pytest.raises(UserError, match="folder"):
        write_trace(tmp_path / "no" / "profiles.parquet", generate_trace(1, 1, 1))
