"""Students that a user names wrongly: one sentence and exit code 2, as `ekya run` gives them."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from ekya import cli
from ekya.models.edge.checkpoints import save_model
from ekya.models.edge.model import build_edge_model

pytestmark = [pytest.mark.live, pytest.mark.virtual]


def run(folder, shared, student, *others):
    """Runs a user's command on virtual time; returns its exit code."""
    golden = shared / "weights" / "deimv2_hgnetv2_femto_coco.onnx"
    video = shared / "videos" / "degirum_Traffic.mp4"
    named = ["--video", video, "--golden", golden, "--student", student, *(others or ["--classes", "car"])]
    fixed = ["--clock", "virtual", "--windows", "1", "--window", "8", "--runs", folder]
    return cli.main([str(one) for one in ["run", *named, *fixed]])


@pytest.mark.parametrize(
    ("student", "says"),
    [
        ("none.safetensors", "edge.weights: none.safetensors does not exist; correct the path"),
        ("yolo=FastestDet.onnx", "no student is called 'yolo'; use one of fastestdet"),
        ("junk.safetensors", "junk.safetensors: not a whole safetensors file"),
        ("others.safetensors", "others.safetensors: is no fastestdet, which the key 'edge.model' asks for"),
        ("deimv2_hgnetv2_femto_coco.onnx", "cannot be trained as a fastestdet, named by the key"),
        ("classifier.safetensors", "edge.model: resnet18 is a classifier, and edge.task is detect"),
    ],
)
def test_student_that_is_none_is_refused(tmp_path, data_dir, capfd, monkeypatch, student, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    save_file({"one": np.zeros(3, np.float32)}, tmp_path / "others.safetensors", {"format": "pt"})
    save_model(build_edge_model(("car",), 0, 0), tmp_path / "classifier.safetensors")
    shared = data_dir / "weights" / student
    assert run(tmp_path, data_dir, shared if shared.is_file() else student) == 2
    assert says in last_line(capfd)


@pytest.mark.parametrize(
    ("known", "asked", "says"),
    [
        ("kite", "person", "own.safetensors: this detector does not find 'person'"),
        ("zeppelin", "zeppelin", "the golden detector knows no 'zeppelin'"),
    ],
)
def test_class_that_a_model_does_not_know_is_refused(tmp_path, data_dir, capfd, known, asked, says):
    own = tmp_path / "own.safetensors"
    save_model(build_edge_model(("car", known), 0, 0, "fastestdet"), own)
    assert run(tmp_path, data_dir, own, "--classes", f"car,{asked}") == 2
    assert says in last_line(capfd)


def last_line(capfd):
    """Returns the last line of standard error, the only one of the command itself."""
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("ekya: ")]
    assert len(lines) == 1
    return lines[0]
