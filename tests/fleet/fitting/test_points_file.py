from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ekya.core.errors import UserError
from ekya.fleet.fitting.points_file import SCHEMA, add_points, read_points, read_tried, write_points
from ekya.fleet.policy.deep_edge.estimates import EdgeWork, ProfilePoint, ProfileSetting
from ekya.fleet.policy.places import NodeState

POINT = ProfilePoint(
    kind="arm",
    before=NodeState(0.1, 0.0, 0.25),
    batch=16,
    batches=(16, 8),
    parameter_server=NodeState(0.2, 0.3, 0.4),
    share_milli=500,
    compute_s=1 / 3,
    update_s=0.01,
    after=NodeState(0.9, 0.0, 0.5),
    app="inference",
    exec_s=0.05,
)
TRIED = ProfileSetting(EdgeWork("arm", "resnet18", 32, 1), 0.5, 0.25, 16, 500)


def test_points_written_are_read_unchanged(tmp_path):
    file = tmp_path / "points.parquet"
    write_points(file, [POINT], [TRIED])
    other = replace(POINT, app="", batches=())
    assert add_points(file, [other]) == 2
    assert read_points(file) == [POINT, other]
    assert read_tried(file) == [TRIED]


@pytest.mark.parametrize(
    ("row", "tried", "what"),
    [
        ({"kind": "arm", "batch": 16}, b"[]", "holds incomplete profile points"),
        (None, b'[{"cpu": 0.5}]', "its list of what was tried is damaged"),
        (None, b"[", "its list of what was tried is damaged"),
    ],
)
def test_points_damaged_file_is_refused(tmp_path, row, tried, what):
    file = tmp_path / "points.parquet"
    schema = SCHEMA.with_metadata({b"ekya.tried": tried})
    pq.write_table(pa.Table.from_pylist([row] if row else [], schema), file)
    with pytest.raises(UserError, match=f"points.parquet:? {what}"):
        (read_points if row else read_tried)(file)
