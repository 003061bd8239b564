"""ONNX files: input, outputs, metadata and operations of a network.

Run by onnxruntime, which exposes the shapes of inputs and outputs and the metadata of a file; OpenCV, which
runs FastestDet, exposes none of these.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ekya.errors import UserError

USUAL_SIDE = 640
"""Side of a dynamic input in pixels: the size that these networks are trained with."""

_TYPES: Mapping[str, type[np.floating[Any]]] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})


@dataclass(frozen=True, slots=True, eq=False)
class OnnxFile:
    """An ONNX network that takes one image.

    Attributes:
        path: of the file, for errors.
        height, width: of its input, pixels.
        notes: metadata of the file, by key.
    """

    path: Path
    height: int
    width: int
    notes: Mapping[str, str]
    _session: Any
    _input: str
    _type: type[np.floating[Any]]

    def run(self, picture: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Returns all outputs for an image, (3, height, width)."""
        answers: list[NDArray[Any]] = self._session.run(
            None, {self._input: np.ascontiguousarray(picture[None].astype(self._type))}
        )
        return answers

    def operations(self) -> int:
        """Returns the multiplications and additions of convolutions and matrix products for one image."""
        with tempfile.TemporaryDirectory() as folder:
            options = _options()
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "counted")
            # Without optimisation: fused layers cannot be recognised by name.
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            session = onnxruntime.InferenceSession(str(self.path), options, ["CPUExecutionProvider"])
            session.run(None, {self._input: np.zeros((1, 3, self.height, self.width), self._type)})
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return sum(_products(event.get("args", {})) for event in events)


def open_onnx_file(path: Path) -> OnnxFile:
    """Load a network and read the shape of its input.

    Raises:
        UserError: the file is missing or damaged, or its input is not one image.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file, named by the key 'weights'; correct the path.")
    try:
        session = onnxruntime.InferenceSession(str(path), _options(), ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no other common base.
        raise UserError(
            f"{path}: no ONNX network that onnxruntime can run, named by the key 'weights' "
            f"({str(error).splitlines()[0][:160]}); export or copy it again."
        ) from error
    inputs = session.get_inputs()
    shape = list(inputs[0].shape) if len(inputs) == 1 else []
    if len(shape) != 4 or shape[1] != 3 or inputs[0].type not in _TYPES or shape[0] not in (1, *_open(shape)):
        told = ", ".join(f"{one.name} {one.type} {one.shape}" for one in inputs)
        raise UserError(
            f"{path}: takes {told} where one picture of floats (1, 3, height, width) is expected, named "
            "by the key 'weights'; export it so."
        )
    height, width = (side if isinstance(side, int) else USUAL_SIDE for side in shape[2:])
    notes = {str(key): str(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    return OnnxFile(path, height, width, notes, session, inputs[0].name, _TYPES[inputs[0].type])


def _open(shape: Sequence[object]) -> list[object]:
    """Returns the batch dimension in a list, if the network leaves it open, else an empty list."""
    return [] if isinstance(shape[0], int) else [shape[0]]


def _options() -> Any:
    """Returns session options: one thread, as in all of Ekya, and no logs, as errors are raised."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def _products(told: Mapping[str, Any]) -> int:
    """Returns the operations of one layer, from the shapes of its inputs and outputs."""
    if told.get("op_name") not in _PRODUCTS or "output_type_shape" not in told:
        return 0
    left, right, *_ = [next(iter(one.values())) for one in told["input_type_shape"]]
    given = next(iter(told["output_type_shape"][0].values()))
    # Number of products per value of the output. A Gemm's left matrix may be transposed.
    match told["op_name"]:
        case "Conv":
            summed = int(np.prod(right[1:]))
        case "MatMul":
            summed = left[-1]
        case _:
            summed = int(np.prod(left)) // max(given[0], 1)
    return 2 * int(np.prod(given)) * summed
