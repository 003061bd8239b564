"""Runs a detector in onnxruntime: on a CPU this takes less than half of torch's time.

A network is exported once in a process, with a free side, so that one session serves every side. The weights
of each model are then written into the file, which is ten times as fast as another export. (Weights that are
given to a session beside its file come too late: its optimiser has laid out those in the file by then.)
"""

import io
import threading
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ekya.models.edge.detection.read_objects import Candidates
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.edge.pixels import INPUT_MEAN, INPUT_SCALE
from ekya.models.edge.predictor import fuse

_INPUT, _SIDE = "images", "side"
_OUTPUTS = ["boxes", "scores", "outputs"]
_TRACED_SIDE = 64
_EXPORTING = threading.Lock()
"""Torch's exporter keeps the state of an export in its module, so a process makes one at a time."""


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

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session: Any = onnxruntime.InferenceSession(_file(fused), options, ["CPUExecutionProvider"])

    def __call__(self, image: NDArray[np.uint8]) -> Candidates:
        """Returns the boxes of an image (1, S, S, 3), uint8 RGB."""
        return Candidates(*self._session.run(_OUTPUTS, {_INPUT: image}))


class _Network(nn.Module):
    """A detector from the pixels to the boxes, as it is exported."""

    def __init__(self, model: EdgeModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert self.model.detector is not None
        # As ``normalised``, in two operations instead of three: each is a pass over all pixels.
        images = pixels.permute(0, 3, 1, 2).float() * (1 / (255 * INPUT_SCALE)) - INPUT_MEAN / INPUT_SCALE
        decoded = self.model.detector.decode(self.model(images))
        return decoded.boxes, decoded.scores, decoded.outputs


def _file(fused: EdgeModel) -> bytes:
    """Returns a detector as an ONNX file."""
    import onnx

    file = onnx.ModelProto.FromString(_exported(fused.architecture, len(fused.classes)))
    weights = dict(_Network(fused).named_parameters())
    places = {one.name: one for one in file.graph.initializer}
    for name, weight in weights.items():
        places[name].raw_data = weight.detach().contiguous().numpy().tobytes()
    written: bytes = file.SerializeToString()
    return written


@lru_cache
def _exported(architecture: str, classes: int) -> bytes:
    """Returns a detector of this number of classes as an ONNX file; its weights mean nothing."""
    model = build_edge_model(tuple(str(place) for place in range(classes)), 0, 0, architecture)
    network = _Network(fuse(model)).eval()
    made = torch.Generator().manual_seed(0)
    for weight in network.parameters():
        # The exporter joins weights with equal values, as the zeros of fresh biases are.
        weight.uniform_(generator=made)
    file: Any = io.BytesIO()
    with _EXPORTING, warnings.catch_warnings():
        # The exporter by tracing is deprecated; the other one needs a package more and takes longer.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.zeros(1, _TRACED_SIDE, _TRACED_SIDE, 3, dtype=torch.uint8),),
            file,
            dynamo=False,
            do_constant_folding=False,
            input_names=[_INPUT],
            output_names=_OUTPUTS,
            dynamic_axes={_INPUT: {1: _SIDE, 2: _SIDE}},
        )
    graph: bytes = file.getvalue()
    return graph
