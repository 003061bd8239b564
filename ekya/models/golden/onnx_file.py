"""An ONNX file of a detector: its inputs, its session on a device, its class names, and a run's cost.

What its answers mean is in ``answer_layout.py``.
"""

import ast
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.models.golden.class_map import coco_names, listed_names
from ekya.models.golden.detections import ON_CPU, RunsOn
from ekya.models.onnx_wheels import why_no_cuda

USUAL_SIDE = 640
"""Side of a dynamic input in pixels: the size that these networks are trained with."""

SIZES_INPUT = "orig_target_sizes"
"""Name of the input for the frame's width and height, by which a network scales its boxes itself."""

Answers = Mapping[str, NDArray[Any]]
"""The outputs of a network, by name, in the file's order."""

_BYTES = "tensor(uint8)"
_PICTURE_TYPES: Mapping[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    _BYTES: np.uint8,
}
_SIZES_TYPES: Mapping[str, type[np.signedinteger[Any]]] = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})

_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_MOST_GPU_BYTES = 4 << 30
"""Upper bound of a session's memory on a GPU, which other jobs share; a detector of 640 pixels takes less."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class OnnxFile:
    """An ONNX network that takes one picture, and perhaps the size of the frame that it shows.

    Attributes:
        path: of the file, for errors.
        height, width: of its input, pixels.
        takes_size: whether it has the input ``orig_target_sizes``.
        takes_bytes: its pixels are whole numbers to 255.
        channels_last: its picture is (height, width, 3), as in exports of TensorFlow.
        notes: metadata of the file, by key.
        runs_on: where its session runs.
    """

    path: Path
    height: int
    width: int
    takes_size: bool
    takes_bytes: bool
    channels_last: bool
    notes: Mapping[str, str]
    runs_on: RunsOn
    _session: Any
    _types: Mapping[str, type[np.generic]]
    _batched: bool = True

    def run(self, picture: NDArray[np.float32], frame_size: tuple[int, int]) -> Answers:
        """Returns all outputs for one picture.

        Args:
            picture: (3, height, width), in the range that it takes.
            frame_size: width and height of the frame that it was made from, pixels.
        """
        values = self._session.run(None, self._feed(picture, frame_size))
        return {output.name: value for output, value in zip(self._session.get_outputs(), values, strict=True)}

    def operations(self) -> int:
        """Returns the multiplications and additions of convolutions and matrix products for one picture."""
        with tempfile.TemporaryDirectory() as folder:
            options = _options()
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "counted")
            # Without optimisation: fused layers cannot be recognised by name.
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            # Weights that a layer has packed for itself are missing among the shapes of its inputs.
            options.add_session_config_entry("session.disable_prepacking", "1")
            session = onnxruntime.InferenceSession(str(self.path), options, [_CPU])
            black = np.zeros((3, self.height, self.width), np.float32)
            session.run(None, self._feed(black, (self.width, self.height)))
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return sum(_products(event.get("args", {})) for event in events)

    def _feed(self, picture: NDArray[np.float32], frame_size: tuple[int, int]) -> dict[str, NDArray[Any]]:
        if self.takes_bytes:
            picture = picture.round()
        if self.channels_last:
            picture = picture.transpose(1, 2, 0)
        values = dict.fromkeys(self._types, picture[None] if self._batched else picture)
        values[SIZES_INPUT] = np.asarray([frame_size])
        return {name: np.ascontiguousarray(values[name], of) for name, of in self._types.items()}


def open_file(path: Path, device: str = "cpu") -> OnnxFile:
    """Loads a network onto a device, as ``open_session`` does, and reads the shapes of its inputs.

    Raises:
        UserError: the file is damaged, or its inputs are not one picture, alone or with its frame's size.
    """
    try:
        session = open_session(path, device)
    except Exception as error:  # onnxruntime's exceptions have no other common base.
        raise UserError(
            f"{path}: no ONNX network that onnxruntime can run, named by the key 'weights' "
            f"({str(error).splitlines()[0][:160]}); export or copy it again."
        ) from error
    inputs = session.get_inputs()
    pictures = [one for one in inputs if _is_picture(one)]
    sizes = [one for one in inputs if _is_frame_size(one)]
    if len(pictures) != 1 or len(pictures) + len(sizes) != len(inputs):
        taken = ", ".join(f"{one.name} {one.type} {one.shape}" for one in inputs)
        raise UserError(
            f"{path}: takes {taken} where one picture (1, 3, height, width), (3, height, width) or "
            f"(1, height, width, 3) of floats or bytes is expected, alone or with the integers {SIZES_INPUT} "
            "(1, 2), named by the key 'weights'; export it so."
        )
    types = {one.name: _PICTURE_TYPES[one.type] for one in pictures}
    shape = pictures[0].shape
    channels_last = shape[-3] != 3
    sides = shape[-3:-1] if channels_last else shape[-2:]
    height, width = (side if isinstance(side, int) else USUAL_SIDE for side in sides)
    notes = {str(key): str(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    return OnnxFile(
        path,
        height,
        width,
        bool(sizes),
        pictures[0].type == _BYTES,
        channels_last,
        notes,
        RunsOn(device, _CUDA) if _CUDA in session.get_providers() else ON_CPU,
        session,
        {**types, **{one.name: _SIZES_TYPES[one.type] for one in sizes}},
        len(shape) == 4,
    )


def open_session(path: Path, device: str) -> Any:
    """Returns a session of a network; on the CPU, and says so, where a GPU is asked for and cannot be had.

    What it has become is in its ``get_providers()``.

    Raises:
        Exception: onnxruntime cannot run the file.
    """
    if device == "cpu":
        return onnxruntime.InferenceSession(str(path), _options(), [_CPU])
    session, why = None, why_no_cuda() or "onnxruntime's CUDA provider does not start"
    if _CUDA in onnxruntime.get_available_providers():
        # Loads the libraries of CUDA that torch's wheels have brought; older versions look for themselves.
        getattr(onnxruntime, "preload_dlls", lambda: None)()
        cuda = {
            "device_id": int(device.partition(":")[2] or 0),
            # An exhaustive search is repeated for every new shape.
            "cudnn_conv_algo_search": "HEURISTIC",
            "gpu_mem_limit": _MOST_GPU_BYTES,
            "arena_extend_strategy": "kSameAsRequested",
        }
        try:
            session = onnxruntime.InferenceSession(str(path), _options(), [(_CUDA, cuda), _CPU])
        except Exception as error:  # onnxruntime's exceptions have no other common base.
            why = f"{why} ({next(iter(str(error).splitlines()), '')[:160]})"
    session = session or onnxruntime.InferenceSession(str(path), _options(), [_CPU])
    if _CUDA not in session.get_providers():
        _warn_once(why)
    return session


@lru_cache
def _warn_once(why: str) -> None:
    """Logs where ONNX detectors run; not again for every stream of a process."""
    _LOG.warning("the golden detector runs on the CPU although there is a GPU, since %s", why)


def names_of(file: OnnxFile) -> tuple[str, ...]:
    """Returns the network's classes, in the order of their numbers.

    They are those in the file's metadata under ``names``, or the lines of a ``.names`` file of the same name
    or of ``coco.names`` beside it, or COCO's.

    Raises:
        UserError: the metadata names no classes in a form that can be read.
    """
    if "names" in file.notes:
        return _written_names(file)
    for beside in (file.path.with_suffix(".names"), file.path.with_name("coco.names")):
        if beside.is_file():
            return listed_names(beside)
    return coco_names()


def _written_names(file: OnnxFile) -> tuple[str, ...]:
    """Returns the class names in the metadata: ``{0: 'person', 1: 'bicycle'}`` or a list."""
    try:
        # Literals only: text of a foreign file must not run as code. Deep nesting raises the last two errors.
        written = ast.literal_eval(file.notes["names"])
        names = [written[index] for index in range(len(written))]
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise UserError(
            f"{file.path}: what it says under 'names' is no list of classes; export it again."
        ) from error
    if not isinstance(written, Mapping | list | tuple) or not names:
        raise UserError(f"{file.path}: what it says under 'names' is no list of classes; export it again.")
    return tuple(str(name) for name in names)


def _is_picture(taken: Any) -> bool:
    shape = taken.shape
    framed = len(shape) == 3 or (len(shape) == 4 and _is_one(shape))
    return framed and 3 in (shape[-3], shape[-1]) and taken.type in _PICTURE_TYPES


def _is_frame_size(taken: Any) -> bool:
    shape = taken.shape
    named = taken.name == SIZES_INPUT and taken.type in _SIZES_TYPES
    return named and len(shape) == 2 and _is_one(shape) and shape[1] == 2


def _is_one(shape: Sequence[object]) -> bool:
    """Returns whether the first dimension, the batch, is 1 or left open."""
    return shape[0] == 1 or not isinstance(shape[0], int)


def _options() -> Any:
    """Returns session options: one thread, as in all of Ekya, and no logs, as errors are raised."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def _products(layer: Mapping[str, Any]) -> int:
    """Returns the operations of one layer, from the shapes of its inputs and outputs."""
    if layer.get("op_name") not in _PRODUCTS or "output_type_shape" not in layer:
        return 0
    left, right = (next(iter(one.values())) for one in layer["input_type_shape"][:2])
    given = next(iter(layer["output_type_shape"][0].values()))
    # Number of products per value of the output. A Gemm's left matrix may be transposed.
    match layer["op_name"]:
        case "Conv":
            summed = int(np.prod(right[1:]))
        case "MatMul":
            summed = left[-1]
        case _:
            summed = int(np.prod(left)) // max(given[0], 1)
    return 2 * int(np.prod(given)) * summed
