"""ONNX networks that return given answers, as files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE = 64
CELLS = 8 * 8 + 4 * 4 + 2 * 2
NAMES = "{0: 'cat', 1: 'dog', 2: 'kite'}"

BRIGHT = 0.9
"""A picture with a value above this is one of the noise to which a detector's layout is determined."""

_ONE_FRAME = ((1, 2), ("N", 2))


def write(
    path: Path,
    *answers: np.ndarray,
    named: Mapping[str, np.ndarray] | None = None,
    at_first: Mapping[str, np.ndarray] | None = None,
    names: str | None = NAMES,
    taken: tuple[object, ...] = (1, 3, SIDE, SIDE),
    kind: int = TensorProto.FLOAT,
    sizes: Mapping[str, object] | None = None,
    **notes: str,
) -> Path:
    """Writes a network that always returns these answers; one convolution reads the picture.

    Args:
        path: of the file.
        answers: outputs, converted to float32.
        named: outputs by name, of any type, instead.
        at_first: other answers to a bright picture.
        names: metadata on the classes.
        taken, kind: shape and type of the picture.
        sizes: name, shape and elem_type of a second input. If it is a frame's width and height, boxes are
            multiplied by it, as in exports of the DETR family.
        notes: other metadata.
    """
    told = named or {f"output{at}": of.astype(np.float32) for at, of in enumerate(answers)}
    kernel = numpy_helper.from_array(np.zeros((2, 3, 1, 1), np.float32), "kernel")
    nodes = [helper.make_node("Cast", ["images"], ["seen"], to=TensorProto.FLOAT)]
    nodes += [helper.make_node("Conv", ["seen", "kernel"], ["looked"])]
    nodes += [helper.make_node("ReduceMax", ["looked"], ["nothing"], keepdims=0)]
    constants = [kernel]
    if at_first is None:
        constants += [numpy_helper.from_array(value, f"told_{name}") for name, value in told.items()]
    else:
        constants.append(numpy_helper.from_array(np.float32(BRIGHT), "bright"))
        nodes.append(helper.make_node("ReduceMax", ["seen"], ["brightest"], keepdims=0))
        nodes.append(helper.make_node("Greater", ["brightest", "bright"], ["first"]))
        branches = {"then_branch": _branch(at_first), "else_branch": _branch(told)}
        nodes.append(helper.make_node("If", ["first"], [f"told_{name}" for name in told], **branches))
    scaled = sizes is not None and sizes["shape"] in _ONE_FRAME
    if scaled:
        constants.append(numpy_helper.from_array(np.array([1, 2], np.int64), "twice"))
        nodes.append(helper.make_node("Tile", [sizes["name"], "twice"], ["corners"]))
        nodes.append(helper.make_node("Cast", ["corners"], ["factors"], to=TensorProto.FLOAT))
    for name, value in told.items():
        if scaled and name == "boxes" and value.dtype == np.float32:
            nodes.append(helper.make_node("Mul", ["told_boxes", "factors"], ["boxes"]))
        elif value.dtype == np.float32:
            nodes.append(helper.make_node("Add", [f"told_{name}", "nothing"], [name]))
        else:
            nodes.append(helper.make_node("Identity", [f"told_{name}"], [name]))
    inputs = [helper.make_tensor_value_info("images", kind, taken)]
    if sizes is not None:
        inputs.insert(0, helper.make_tensor_value_info(**sizes))
    graph = helper.make_graph(nodes, "net", inputs, _outputs(told, at_first is None), constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(model, {**notes, **({} if names is None else {"names": names})})
    onnx.save(model, str(path))
    return path


def frame_size(**changes: object) -> dict[str, object]:
    """Returns the second input of an export of the DETR family."""
    return {"name": "orig_target_sizes", "elem_type": TensorProto.INT64, "shape": (1, 2), **changes}


def _branch(told: Mapping[str, np.ndarray]) -> onnx.GraphProto:
    nodes = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
        for name, value in told.items()
    ]
    return helper.make_graph(nodes, "branch", [], _outputs(told, True))


def _outputs(told: Mapping[str, np.ndarray], of_one_shape: bool) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape if of_one_shape else None
        )
        for name, value in told.items()
    ]
