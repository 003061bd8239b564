"""An ONNX file: what its network takes, what it answers, and how much it computes.

Run by onnxruntime, which says what a network's input and answers look like and what its maker wrote
beside them; OpenCV, which runs FastestDet, says none of it.
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
"""Pixels, where a network leaves its input's size open: what these networks are trained with."""

_TYPES: Mapping[str, type[np.floating[Any]]] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})


@dataclass(frozen=True, slots=True, eq=False)
class OnnxFile:
    """An ONNX network that takes one picture.

    Attributes:
        path: of the file, for errors.
        height, width: of its input, pixels.
        notes: what its maker wrote into it, by key.
    """

    path: Path
    height: int
    width: int
    notes: Mapping[str, str]
    _session: Any
    _input: str
    _type: type[np.floating[Any]]

    def run(self, picture: NDArray[np.float32]) -> list[NDArray[Any]]:
        """All answers to a picture, (3, height, width)."""
        answers: list[NDArray[Any]] = self._session.run(
            None, {self._input: np.ascontiguousarray(picture[None].astype(self._type))}
        )
        return answers

    def operations(self) -> int:
        """Multiplications and additions of convolutions and matrix products, counted on a black picture."""
        with tempfile.TemporaryDirectory() as folder:
            options = _options()
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "counted")
            # As it stands in the file: what is merged for speed is no longer told by its name.
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            session = onnxruntime.InferenceSession(str(self.path), options, ["CPUExecutionProvider"])
            session.run(None, {self._input: np.zeros((1, 3, self.height, self.width), self._type)})
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return sum(_products(event.get("args", {})) for event in events)


def open_onnx_file(path: Path) -> OnnxFile:
    """Load a network and find out what it takes.

    Raises:
        UserError: the file is missing or damaged, or takes something else than one picture.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file, named by the key 'weights'; correct the path.")
    try:
        session = onnxruntime.InferenceSession(str(path), _options(), ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no other base.
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
    """The number of pictures, where the network leaves it open."""
    return [] if isinstance(shape[0], int) else [shape[0]]


def _options() -> Any:
    """One thread, as everything here, and silence: what is wrong is said in one sentence."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def _products(told: Mapping[str, Any]) -> int:
    """Operations of one layer, from the shapes that it took and gave."""
    if told.get("op_name") not in _PRODUCTS or "output_type_shape" not in told:
        return 0
    left, right, *_ = [next(iter(one.values())) for one in told["input_type_shape"]]
    given = next(iter(told["output_type_shape"][0].values()))
    # How many products are summed for each number of the answer. A Gemm's left matrix may lie on its side.
    match told["op_name"]:
        case "Conv":
            summed = int(np.prod(right[1:]))
        case "MatMul":
            summed = left[-1]
        case _:
            summed = int(np.prod(left)) // max(given[0], 1)
    return 2 * int(np.prod(given)) * summed
