"""The file of a training: what is written is read, and it can carry nothing else."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from bundles import GAMMA, NAMES, bars
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.areas import Areas
from ekya.core.errors import UserError
from ekya.fleet.run.training.bundle_file import TrainingBundle, pack_bundle, read_bundle
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.frames import NOTHING, FrameObjects, LabelledFrames
from ekya.models.training.trainer import RetrainingData


def frames(count):
    boxes = np.array([[0.1, 0.2, 0.5, 0.9]], np.float32)
    seen = FrameObjects(boxes, np.zeros(1, np.int64), boxes[:0], Areas(zone=(((0, 0), (1, 0), (1, 1)),)))
    order = np.arange(count, dtype=np.int64)
    images = np.random.default_rng(1).integers(0, 255, (count, 16, 16, 3)).astype(np.uint8)
    return LabelledFrames(images, (seen, NOTHING)[:count] * (count // 2 or 1), NAMES, order, order)


def same(one, other):
    """Returns whether two values are equal, with their arrays."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__
        )
    return one == other


@given(
    samples=st.sampled_from([bars(6, 1), frames(2)]),
    exemplars=st.booleans(),
    pooled=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
    start=st.binary(max_size=64),
    snapshot=st.none() | st.binary(min_size=1, max_size=64),
    fraction=st.floats(0.01, 1.0),
)
def test_what_is_written_is_read(
    tmp_path_factory, samples, exemplars, pooled, seed, start, snapshot, fraction
) -> None:
    memory = ExemplarMemory(20, samples if exemplars else None)
    data = RetrainingData(samples, samples, NAMES, memory, seed, samples if pooled else None)
    bundle = TrainingBundle(replace(GAMMA, data_fraction=fraction), start, data, snapshot)
    file = tmp_path_factory.mktemp("bundle") / "file"
    file.write_bytes(pack_bundle(bundle))
    assert same(read_bundle(file), bundle)


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_what_is_cut_off_is_refused(cut, tmp_path) -> None:
    whole = pack_bundle(TrainingBundle(GAMMA, b"weights", RetrainingData(bars(6, 1), bars(6, 2), NAMES)))
    (tmp_path / "file").write_bytes(whole[:cut])
    with pytest.raises(UserError, match=r"this is no training: .*; send it again"):
        read_bundle(tmp_path / "file")


class _Runs:
    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


def test_nothing_in_it_is_run(tmp_path) -> None:
    (tmp_path / "file").write_bytes(pickle.dumps(_Runs()))
    with pytest.raises(UserError, match="this is no training"):
        read_bundle(tmp_path / "file")
