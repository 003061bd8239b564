"""Golden models on a GPU: batches and half precision on ``cpu:0``, and providers of a fake onnxruntime."""

from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from onnx_networks import CELLS, write
from torch import nn

from ekya.models import onnx_wheels
from ekya.models.golden import onnx_file, torchvision_models
from ekya.models.golden.classifier import GoldenClassifier
from ekya.models.golden.detections import ON_CPU, Question, RunsOn
from ekya.models.golden.golden_model import open_detector
from ekya.models.golden.on_device import place_network
from ekya.models.golden.torchvision_models import TorchvisionDetector

NOT_THE_CPU = "cpu:0"
"""A device that torch has everywhere, under another name than the CPU's: it stands for a GPU."""

SMALL, LARGE = np.zeros((32, 32, 3), np.uint8), np.zeros((48, 64, 3), np.uint8)
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
GPU_ONLY, CPU_ONLY = {"onnxruntime-gpu": "1.31"}, {"onnxruntime": "1.32"}


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)).eval()


def test_network_is_halved_on_a_gpu_where_it_computes_the_same(network):
    pictures = torch.rand(2, 3, 16, 16)
    expected = network(pictures)
    same, on_cpu = place_network(network, "cpu", (2, 3, 16, 16))
    assert (same is network, on_cpu) == (True, ON_CPU)
    placed, runs_on = place_network(network, NOT_THE_CPU, (2, 3, 16, 16))
    assert str(runs_on) == "cpu:0 (float16)"
    found = placed(pictures)
    assert found.dtype == torch.float32
    assert 0 < (found - expected).abs().max() < 0.01


def test_network_that_half_precision_cannot_hold_stays_in_32_bits(network, caplog):
    with torch.no_grad():
        network[0].weight *= 1e6
    placed, runs_on = place_network(network, NOT_THE_CPU, (2, 3, 16, 16))
    assert (placed is network, runs_on) == (True, RunsOn(NOT_THE_CPU))
    assert "in 32 bits" in caplog.text


def test_crops_pass_in_larger_batches_on_a_gpu():
    class Counting(nn.Module):
        def forward(self, crops):
            passes.append(len(crops))
            return crops.mean(dim=(2, 3))

    boxes = np.tile(np.array([[2, 2, 20, 20]], np.float32), (150, 1))
    answers = []
    for runs_on, expected in ((ON_CPU, [32, 32, 32, 32, 22]), (RunsOn(NOT_THE_CPU), [128, 22])):
        passes = []
        golden = GoldenClassifier(("a", "b", "c"), Counting(), 8, runs_on)
        answers.append(golden.label_boxes([Question(boxes, SMALL)])[0].tolist())
        assert passes == expected
    assert answers[0] == answers[1]


class Detector(nn.Module):
    """Network of a detector: fails for lack of memory from a number of pictures on; notes their numbers."""

    def __init__(self, fits):
        super().__init__()
        self.backbone, self.fits, self.passes = nn.Conv2d(3, 2, 1), fits, []

    def forward(self, pictures):
        self.passes.append([tuple(one.shape[1:]) for one in pictures])
        if len(pictures) > self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        box = torch.tensor([[1.0, 1.0, 9.0, 9.0]])
        return [{"boxes": box, "labels": torch.tensor([1]), "scores": torch.tensor([0.9])} for _ in pictures]


def opened(monkeypatch, device, fits=16):
    network = Detector(fits)
    monkeypatch.setattr(torchvision_models, "get_model", lambda *_, **__: network)
    monkeypatch.setattr(torchvision_models, "load_weights", lambda *_: None)
    return TorchvisionDetector("fasterrcnn_resnet50_fpn_v2", None, device=device), network.passes


def test_pictures_of_one_size_pass_together_on_a_gpu_and_one_by_one_on_a_cpu(monkeypatch):
    pictures = [SMALL] * 18 + [LARGE] * 2
    detector, passes = opened(monkeypatch, NOT_THE_CPU)
    assert detector.runs_on == RunsOn(NOT_THE_CPU, "float16")
    assert [len(found.boxes) for found in detector.detect_each(pictures)] == [1] * 20
    assert [(len(one), one[0]) for one in passes] == [(16, (32, 32)), (2, (32, 32)), (2, (48, 64))]
    detector, passes = opened(monkeypatch, "cpu")
    detector.detect_each(pictures)
    assert [len(one) for one in passes] == [1] * 20


def test_gpu_without_memory_for_a_batch_takes_fewer_pictures(monkeypatch):
    detector, passes = opened(monkeypatch, NOT_THE_CPU, fits=5)
    assert len(detector.detect_each([SMALL] * 10)) == 10
    assert [len(one) for one in passes] == [10, 5, 5]
    detector, _ = opened(monkeypatch, NOT_THE_CPU, fits=0)
    with pytest.raises(torch.OutOfMemoryError):
        detector.detect_each([SMALL])


def install(monkeypatch, wheels):
    def version(name):
        if name not in wheels:
            raise PackageNotFoundError(name)
        return wheels[name]

    monkeypatch.setattr(onnx_wheels, "version", version)
    onnx_file._warn_once.cache_clear()


@pytest.mark.parametrize(
    ("wheels", "starts", "said"),
    [
        (GPU_ONLY, True, ""),
        (GPU_ONLY, False, "CUDA provider does not start"),
        (GPU_ONLY, None, "does not start (libcublas is missing)"),
        (CPU_ONLY, True, "the installed onnxruntime has no CUDA: `pip uninstall --yes onnxruntime`, then"),
        (CPU_ONLY | GPU_ONLY, False, "are both installed and overwrite each other's files: `pip uninstall"),
    ],
)
def test_onnx_detector_runs_where_its_session_says(monkeypatch, caplog, tmp_path, wheels, starts, said):
    """With the CPU's wheel no provider but the CPU's is offered; libraries may be missing, loudly or not."""
    asked, loaded = [], []

    def session(path, options, providers):
        asked.append(providers)
        if starts is None and len(providers) > 1:
            raise RuntimeError("libcublas is missing\nat line 1")
        real = onnxruntime.InferenceSession(path, options, [CPU])
        names = [one if isinstance(one, str) else one[0] for one in providers]
        used = names if starts else [CPU]
        return SimpleNamespace(
            run=real.run,
            get_inputs=real.get_inputs,
            get_outputs=real.get_outputs,
            get_modelmeta=real.get_modelmeta,
            get_providers=lambda: used,
        )

    fake = SimpleNamespace(
        InferenceSession=session,
        SessionOptions=onnxruntime.SessionOptions,
        get_available_providers=lambda: [CUDA, CPU] if "onnxruntime-gpu" in wheels else [CPU],
        preload_dlls=lambda: loaded.append(1),
    )
    install(monkeypatch, wheels)
    monkeypatch.setattr(onnx_file, "onnxruntime", fake)
    file = write(tmp_path / "net.onnx", np.zeros((1, 7, CELLS)))
    detectors = [open_detector("onnx", file, device="cuda:1") for _ in range(2)]
    runs_on = detectors[0].runs_on
    assert len(detectors[0].detect_each([SMALL, LARGE])) == 2
    if not said:
        assert str(runs_on) == "cuda:1 (CUDAExecutionProvider)"
        ((name, options), rest) = asked[0]
        assert (name, rest, loaded) == (CUDA, CPU, [1, 1])
        assert (options["device_id"], options["cudnn_conv_algo_search"]) == (1, "HEURISTIC")
        assert 0 < options["gpu_mem_limit"] < 8 << 30
    else:
        assert runs_on == ON_CPU
        assert "the golden detector runs on the CPU although there is a GPU, since" in caplog.text
        assert said in caplog.text
    assert len(caplog.records) == bool(said), "once in a process"
    on_cpu = open_detector("onnx", file)
    assert (on_cpu.runs_on, asked[-1]) == (ON_CPU, [CPU])


def test_version_of_onnxruntime_names_the_wheel_that_is_not_the_usual_one(monkeypatch):
    for wheels, expected in (
        (CPU_ONLY, "1.32"),
        (GPU_ONLY, "onnxruntime-gpu 1.31"),
        (CPU_ONLY | GPU_ONLY, "onnxruntime 1.32, onnxruntime-gpu 1.31"),
    ):
        install(monkeypatch, wheels)
        assert onnx_wheels.onnxruntime_version() == expected


def test_place_of_a_process_that_sees_one_gpu_has_its_number():
    assert [str(RunsOn("cuda", "float16")), str(RunsOn("cuda:3")), str(ON_CPU)] == [
        "cuda:0 (float16)",
        "cuda:3",
        "cpu",
    ]
