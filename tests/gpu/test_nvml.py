"""GPUs of a process, from the driver's list and CUDA_VISIBLE_DEVICES."""

from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pynvml
import pytest

from ekya.gpu.backends.backend import ShareJob
from ekya.gpu.backends.duty_cycle import DutyCycleShares
from ekya.gpu.backends.registry import SHARE_BACKENDS, Machine
from ekya.gpu.mps.service import MpsFound
from ekya.gpu.nvml import list_gpus
from ekya.runtime.driver.machine_report import examination_as_json, examine_machine

GIB = 1 << 30
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
INSTANCE = "MIG-71b1"


class FakeDriver:
    """Fake of NVML's calls. Devices are their indices, a MIG instance is its name.

    Args:
        names: of the GPUs.
        lacking: calls that the driver does not support.
    """

    NVMLError = pynvml.NVMLError
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE

    def __init__(self, *names, lacking=(), uuids=("GPU-aa10", "GPU-aa20", "GPU-bb30"), split=None):
        self.names, self.lacking, self.uuids, self.split = names or ("a GPU",) * 3, lacking, uuids, split
        self.open = 0

    def __getattr__(self, name):
        def call(*arguments):
            if name in self.lacking:
                raise pynvml.NVMLError(NOT_SUPPORTED)
            return _CALLS[name](self, *arguments)

        return call

    def began(self):
        self.open += 1

    def ended(self):
        self.open -= 1

    def by_uuid(self, uuid):
        if uuid != INSTANCE:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def memory(self, device):
        size = 5 if device == INSTANCE else 40
        return SimpleNamespace(total=size * GIB, free=(size - 1) * GIB, used=GIB)

    def mig_mode(self, device):
        if self.split is None:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        return int(device == self.split), 0


_CALLS = {
    "nvmlInit": FakeDriver.began,
    "nvmlShutdown": FakeDriver.ended,
    "nvmlDeviceGetCount": lambda self: len(self.names),
    "nvmlDeviceGetHandleByIndex": lambda self, index: index,
    "nvmlDeviceGetHandleByUUID": FakeDriver.by_uuid,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda self, _instance: self.split,
    "nvmlDeviceGetIndex": lambda self, device: device,
    "nvmlSystemGetDriverVersion": lambda self: "600.1",
    "nvmlDeviceGetName": lambda self, device: "a part" if device == INSTANCE else self.names[device],
    "nvmlDeviceGetUUID": lambda self, device: self.uuids[device],
    "nvmlDeviceGetMemoryInfo": FakeDriver.memory,
    "nvmlDeviceGetMigMode": FakeDriver.mig_mode,
    "nvmlDeviceGetCudaComputeCapability": lambda self, device: (9, 0),
}


def shown(visible, driver=None):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return list_gpus(environment, driver or FakeDriver())


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("0,1,2", [0, 1, 2]),
        ("2, 0", [2, 0]),
        ("GPU-bb30", [2]),
        ("GPU-bb", [2]),
        ("GPU-aa10,2", [0, 2]),
        ("GPU-aa", []),  # A prefix of two names.
        ("", []),
        ("-1", []),
        ("1,-1,2", [1]),  # Entries after an invalid one do not count.
        ("1,2,1", []),  # A repeated one hides all.
        ("7", []),
        ("NoDevFiles", []),
        ("GPU-cc", []),
        ("MIG-none", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(visible, indices):
    driver = FakeDriver()
    inventory = shown(visible, driver)
    assert [gpu.index for gpu in inventory.gpus] == indices
    assert inventory.driver == "600.1"
    assert driver.open == 0


def test_visible_devices_hiding_gpus_are_named():
    assert shown("2").why == "1 of 3 NVIDIA GPUs by CUDA_VISIBLE_DEVICES=2, driver 600.1"
    assert "CUDA_VISIBLE_DEVICES= shows none of 3 NVIDIA GPUs; unset it" in shown("").why


def test_inventory_unlike_gpus_use_driver_numbers():
    unlike = FakeDriver("fast", "slow")
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in shown("1", unlike).why
    assert "CUDA_DEVICE_ORDER" not in shown("GPU-aa20", unlike).why
    chosen = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert "CUDA_DEVICE_ORDER" not in list_gpus(chosen, unlike).why


def test_inventory_mig_instance_is_a_gpu():
    (gpu,) = shown(INSTANCE, FakeDriver(split=1)).gpus
    assert (gpu.index, gpu.name, gpu.uuid, gpu.mig) == (1, "a part", INSTANCE, True)
    assert (gpu.memory_bytes, gpu.memory_free_bytes) == (5 * GIB, 4 * GIB)


@pytest.mark.parametrize("name", SHARE_BACKENDS)
def test_backends_use_only_visible_gpus(name):
    def working(inventory):
        return MpsFound(bool(inventory.gpus), "it works")

    machine = Machine(4, shown("2,0"), working)
    capability = SHARE_BACKENDS[name](machine).probe_machine()
    if capability.device == "cuda":
        assert capability.capacity_milli <= 2000
    hidden = SHARE_BACKENDS[name](Machine(4, shown("-1"), working)).probe_machine()
    assert hidden.usable == (hidden.device == "cpu")


def test_backends_count_only_visible_gpus():
    backend = DutyCycleShares(shown("2,0"))
    first, second = (backend.actor_env(ShareJob("job", "inference", 100, gpu)) for gpu in (0, 1))
    assert (first["CUDA_VISIBLE_DEVICES"], second["CUDA_VISIBLE_DEVICES"]) == ("GPU-bb30", "GPU-aa10")


def test_inventory_gpu_without_own_memory_is_listed(tmp_path):
    inventory = shown(None, FakeDriver("Orin", lacking=["nvmlDeviceGetMemoryInfo"]))
    (gpu,) = inventory.gpus
    assert (gpu.memory_bytes, gpu.memory_free_bytes) == (None, None)
    examination = examine_machine(tmp_path, inventory, lambda _inventory: MpsFound(False, "none"))
    assert (
        "Orin, memory shared with the system"
        in examination_as_json(examination)["findings"]["GPU 0"]["found"]
    )


@pytest.mark.parametrize(
    ("wheels", "said"),
    [
        (
            {"onnxruntime"},
            "ONNX detectors on the CPU, since the installed onnxruntime has no CUDA",
        ),
        ({"onnxruntime-gpu"}, "on the GPU, ONNX detectors too, by onnxruntime-gpu 1.31"),
        ({"onnxruntime", "onnxruntime-gpu"}, "are both installed"),
    ],
)
def test_doctor_says_where_golden_models_run(tmp_path, monkeypatch, wheels, said):
    def version(name):
        if name not in wheels:
            raise PackageNotFoundError(name)
        return "1.31"

    monkeypatch.setattr("ekya.models.onnx_wheels.version", version)
    built = SimpleNamespace(cuda="13.0")
    monkeypatch.setattr("ekya.gpu.backends.duty_cycle.find_torch", lambda: built)
    for visible, expected in ((None, said), ("-1", "on the CPU")):
        examination = examine_machine(tmp_path, shown(visible), lambda _: MpsFound(False, "none"))
        assert (examination.device == "cuda") == (visible is None)
        assert expected in examination_as_json(examination)["findings"]["Golden models"]["found"]


def test_inventory_gpu_without_uuid_uses_its_index():
    inventory = shown(None, FakeDriver("Orin", lacking=["nvmlDeviceGetUUID"]))
    assert [(gpu.uuid, gpu.compute) for gpu in inventory.gpus] == [("0", 9)]
