"""Self-tests of forward passes that are kept on disk; importing them does not need torch."""

from collections.abc import Sequence
from importlib.metadata import version

from pydantic import TypeAdapter

from ekya.gpu.nvml import list_gpus
from ekya.models.edge.architecture_table import Task, task_of
from ekya.models.edge.forward import SelfTest
from ekya.pipeline.measurement_file import MeasurementFile
from ekya.system.host import instruction_set, processor_name

SELF_TESTS = MeasurementFile("forward-passes", TypeAdapter(SelfTest))
"""Self-tests by machine, version of torch, edge model and resolutions."""


def self_test_key(device: str, architecture: str, sides: Sequence[int]) -> dict[str, str]:
    """Returns the conditions under which a self-test made here is valid; sides are those of Λ in pixels."""
    gpus = list_gpus().gpus if device.startswith("cuda") else ()
    return {
        "processor": processor_name(),
        "instruction_set": instruction_set(),
        "gpu": gpus[0].name if gpus else "",
        "torch": version("torch"),
        **({"onnxruntime": version("onnxruntime")} if task_of(architecture) is Task.DETECT else {}),
        "architecture": architecture,
        "sides": " ".join(str(side) for side in sorted(sides)),
    }
