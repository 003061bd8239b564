"""Finds objects in images fast: a detector's forward passes in onnxruntime or torch.

On a CPU onnxruntime takes less than half of torch's time. A network is exported once in a process, with free
side and number of images, so that one session serves every batch. The weights of each model are then written
into the file, which is ten times as fast as another export. (Weights that are given to a session beside its
file come too late: its optimiser has laid out those in the file by then.)
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ekya.models.edge.architecture_table import INPUT_MEAN, INPUT_SCALE
from ekya.models.edge.detection.read_objects import BoxCandidates, rows_of
from ekya.models.edge.forward import MOST_IMAGES, ONNXRUNTIME, PLAIN, TORCH, ForwardWay
from ekya.models.edge.graphs import CudaRecorder, GraphRecorder, Graphs, Work
from ekya.models.edge.model import EdgeModel, build_edge_model, normalised
from ekya.models.edge.onnx_export import IMAGES, trace_network
from ekya.models.edge.predictor import fuse, on_device, prepared

_LOG = logging.getLogger(__name__)

_IN_TORCH = ForwardWay(engine=TORCH, channels_last=True)
"""On a CPU this layout takes two thirds of the time of torch's own."""

_CHECKED_SIDE = 96
"""Of the images on which both engines must agree; not the side at which networks are exported."""

_MOST_ERROR = 1e-3

_OUTPUTS = ["boxes", "scores", "outputs"]
_TRACED_SIDE = 64


class Forward(Protocol):
    """Interface of a detector's forward pass."""

    def __call__(self, images: NDArray[np.uint8]) -> BoxCandidates:
        """Returns the boxes of images (N, S, S, 3), uint8 RGB; N is at least 1, S a multiple of 32."""


class DetectorPredictor:
    """Frozen copy of a detector, prepared for fast inference on a device.

    On a CPU it runs in onnxruntime, or in torch if that fails; on a GPU in torch, whose kernels keep to a
    share.

    Args:
        model: the detector to copy; on any device.
        device: torch device on which the copy runs.
        way: its engine, if it names one, images a pass, and graphs; the other options are for classifiers.
        recorder: of passes, if torch runs them as graphs; None is CUDA's.
        ready: as in ``prepared``.

    Attributes:
        way: how its forward passes run.
        source: the model that was copied.
        model: the copy.
        dtype: type that the copy computes in.
        classes: names, in the order of the outputs.
    """

    def __init__(
        self,
        model: EdgeModel,
        device: str = "cpu",
        way: ForwardWay = PLAIN,
        recorder: GraphRecorder | None = None,
        ready: Mapping[int, nn.Module] | None = None,
    ) -> None:
        self._device = device
        self.source = model
        self.model = prepared(model, device, _IN_TORCH, ready)
        self.dtype = torch.float32
        self.classes = model.classes
        self.way = replace(_IN_TORCH, images_a_pass=way.images_a_pass, graphs=way.graphs)
        work: Work = partial(_pass_pixels, self.model)
        if way.graphs:
            work = Graphs(work, recorder or CudaRecorder(device))
        self._forward: Forward = TorchForward(work, device)
        if torch.device(device).type == "cpu" and way.engine != TORCH:
            self._try_onnxruntime()

    @property
    def shares_blocks(self) -> bool:
        """Whether equal blocks of several models may run once, on the images of all."""
        return self.way.engine == TORCH and self.way.images_a_pass == MOST_IMAGES and not self.way.graphs

    def predict(self, images: NDArray[np.uint8], resolution: int) -> BoxCandidates:
        """Finds objects.

        Args:
            images: (N, S, S, 3) uint8 RGB; N may be 0.
            resolution: side in pixels that they are resized to, λ's resolution; a multiple of 32.
        """
        if len(images) == 0:
            none = np.zeros((0, 0), np.float32)
            return BoxCandidates(np.zeros((0, 0, 4), np.float32), none, none.astype(np.int64))
        starts = range(0, len(images), self.way.images_a_pass)
        parts = (images[start : start + self.way.images_a_pass] for start in starts)
        return BoxCandidates.concatenate([self._forward(_resized(part, resolution)) for part in parts])

    def load_images(self, images: NDArray[np.uint8], resolution: int) -> Tensor:
        """Converts (N, S, S, 3) uint8 RGB to the first block's input (N, 3, resolution, resolution)."""
        return normalised(on_device(_resized(images, resolution), self._device))

    def score_maps(self, maps: Tensor) -> Tensor:
        """Maps (N, F, h, w), the last block's output, to rows (N, A, 6); see ``rows_of``."""
        return _score_maps(self.model, maps)

    def read_scores(self, rows: Sequence[Tensor]) -> list[BoxCandidates]:
        """Returns the answers in what ``score_maps`` returned, on the host."""
        return [BoxCandidates.of_rows(one) for one in rows]

    def _try_onnxruntime(self) -> None:
        try:
            forward = OnnxForward(self.model)
            wrong = error_of(forward, self._forward)
        except Exception as error:  # torch's exporter and onnxruntime have no common base.
            _warn_once(self.model.architecture, f"{type(error).__name__}: {_first_line(error)}")
            return
        if wrong > _MOST_ERROR:
            _warn_once(self.model.architecture, f"its boxes or scores are off by {wrong:.2g}")
            return
        self.way = ForwardWay(engine=ONNXRUNTIME, images_a_pass=self.way.images_a_pass)
        self._forward = forward


class TorchForward:
    """``Forward`` in torch.

    Args:
        work: maps pixels to rows, kernel by kernel or as a graph.
        device: torch device.
    """

    def __init__(self, work: Work, device: str) -> None:
        self._work, self._device = work, device

    @torch.inference_mode()
    def __call__(self, images: NDArray[np.uint8]) -> BoxCandidates:
        """Returns the boxes of images (N, S, S, 3), uint8 RGB."""
        return BoxCandidates.of_rows(self._work(on_device(images, self._device), images.shape[1]))


def _pass_pixels(model: EdgeModel, pixels: Tensor, _: int) -> Tensor:
    """Maps (N, S, S, 3) uint8 on the device to rows (N, A, 6)."""
    return _score_maps(model, model.maps(normalised(pixels)))


def _score_maps(model: EdgeModel, maps: Tensor) -> Tensor:
    assert model.detector is not None
    return rows_of(model.detector.decode_outputs(model.head(maps)))


def error_of(forward: Forward, exact: Forward) -> float:
    """Returns the largest difference of boxes and scores on images of noise; infinite if not finite."""
    images = np.random.default_rng(0).integers(0, 256, (2, _CHECKED_SIDE, _CHECKED_SIDE, 3), np.uint8)
    ours, theirs = forward(images), exact(images)
    # Outputs are not compared: of two classes with equal scores each engine may take another.
    off = max(
        float(np.abs(ours.boxes - theirs.boxes).max()), float(np.abs(ours.scores - theirs.scores).max())
    )
    return off if np.isfinite(off) else np.inf


def _resized(images: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Resizes (N, S, S, 3). Averaging areas would take ten times as long, half of a pass at 160 pixels."""
    if images.shape[1] == side:
        return np.ascontiguousarray(images)
    # Imported here: checks of a GPU run where only torch is installed, and resize nothing.
    import cv2

    smaller = [cv2.resize(image, (side, side), interpolation=cv2.INTER_LINEAR) for image in images]
    return np.asarray(np.stack(smaller), np.uint8)


@lru_cache
def _warn_once(architecture: str, why: str) -> None:
    """Logs a failure; not again for every new model."""
    _LOG.warning("%s runs in torch, which takes longer, since onnxruntime failed (%s)", architecture, why)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:160]


class OnnxForward:
    """``Forward`` of a detector on the CPU, by onnxruntime in the calling thread.

    Args:
        fused: the detector as ``prepared`` returns it, on the CPU.

    Raises:
        Exception: torch cannot export it, or onnxruntime cannot run the export.
    """

    def __init__(self, fused: EdgeModel) -> None:
        # Imported here: a process that only classifies does not need it.
        import onnxruntime

        # One thread, since a share of a CPU is the time of one. Nothing is logged, as errors are raised.
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session: Any = onnxruntime.InferenceSession(_file(fused), options, ["CPUExecutionProvider"])

    def __call__(self, images: NDArray[np.uint8]) -> BoxCandidates:
        """Returns the boxes of images (N, S, S, 3), uint8 RGB."""
        return BoxCandidates(*self._session.run(_OUTPUTS, {IMAGES: images}))


class _Network(nn.Module):
    """A detector from the pixels to the boxes, as it is exported."""

    def __init__(self, model: EdgeModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert self.model.detector is not None
        # As ``normalised``, in two operations instead of three: each is a pass over all pixels.
        images = pixels.permute(0, 3, 1, 2).float() * (1 / (255 * INPUT_SCALE)) - INPUT_MEAN / INPUT_SCALE
        decoded = self.model.detector.decode_outputs(self.model(images))
        return decoded.boxes, decoded.scores, decoded.outputs


def _file(fused: EdgeModel) -> bytes:
    """Returns a detector as an ONNX file."""
    import onnx

    file = onnx.ModelProto.FromString(_exported(fused.architecture, len(fused.classes)))
    weights = dict(_Network(fused).named_parameters())
    places = {one.name: one for one in file.graph.initializer}
    for name, weight in weights.items():
        # ONNX stores rows, and prepared kernels are channels-last.
        places[name].raw_data = weight.detach().contiguous().numpy().tobytes()
    written: bytes = file.SerializeToString()
    return written


@lru_cache
def _exported(architecture: str, classes: int) -> bytes:
    """Returns a detector of this number of classes as an ONNX file; its weights mean nothing."""
    model = build_edge_model(tuple(str(place) for place in range(classes)), 0, 0, architecture)
    network = _Network(fuse(model))
    made = torch.Generator().manual_seed(0)
    for weight in network.parameters():
        # The exporter joins weights with equal values, as the zeros of fresh biases are.
        weight.uniform_(generator=made)
    # Folding could replace weights by constants with other names.
    pixels = torch.zeros(1, _TRACED_SIDE, _TRACED_SIDE, 3, dtype=torch.uint8)
    axes = {IMAGES: {0: "count", 1: "side", 2: "side"}}
    return trace_network(network, (pixels,), _OUTPUTS, axes, fold=False)
