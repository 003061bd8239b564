import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest
import torch
import torchvision

from ekya.gpu.backends.duty_cycle import cpu_only_torch
from ekya.gpu.torch_build import find_torch


@pytest.fixture
def packages(tmp_path):
    """Makes a folder of packages with torch, as an installer leaves them."""

    def make(cuda="'13.2'", needs="torch (==2.15.0)", missing=()):
        files = {
            "torch/__init__.py": "raise ImportError('nobody imports this')",
            "torch/version.py": f"__version__ = '2.15.0+x'\ncuda: Optional[str] = {cuda}\nhip = None\n",
            f"torch/_C{EXTENSION_SUFFIXES[0]}": "",
            "torch/_C/__init__.pyi": "",
            "torch-2.15.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n",
            "torchvision-0.30.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torchvision\n"
            f"Version: 0.30.0\nRequires-Dist: numpy\nRequires-Dist: {needs}\n",
        }
        for name, text in files.items():
            if not name.startswith(tuple(missing) or "none"):
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text(text)
        return [str(tmp_path)]

    return make


def test_torch_build_is_read_from_its_files(packages):
    build = find_torch(packages())
    assert (build.version, build.vision_version, build.cuda) == ("2.15.0+x", "0.30.0", "13.2")
    assert build.broken == ""


@pytest.mark.parametrize("cuda", ["None", "''"])
def test_torch_build_without_cuda_is_detected(packages, cuda):
    assert find_torch(packages(cuda)).cuda is None


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        (["torch-2.15"], "torch is not installed"),
        (["torchvision-0.30"], "torchvision is not installed"),
        (["torch/"], "the files of torch are missing"),
        (["torch/version.py"], "version.py is missing"),
        (["torch/_C."], "no compiled library for this Python"),
    ],
)
def test_torch_build_missing_part_is_reported(packages, missing, says):
    assert says in find_torch(packages(missing=missing)).broken


@pytest.mark.parametrize(
    ("needs", "fits"),
    [
        ("torch (==2.15.0)", True),
        ("torch==2.15.0", True),
        ("torch>=2.14.0", True),
        ("torch==2.14.1", False),
        ("torch (>=2.16.0)", False),
    ],
)
def test_torch_build_version_mismatch_is_reported(packages, needs, fits):
    assert (find_torch(packages(needs=needs)).broken == "") == fits


def test_torch_build_matches_the_imported_torch():
    build = find_torch()
    assert (build.version, build.cuda) == (torch.__version__, torch.version.cuda)
    assert torchvision.__version__.startswith(build.vision_version)
    assert build.broken == ""
    assert cpu_only_torch() == (torch.version.cuda is None)


def test_doctor_imports_no_engine(tmp_path):
    code = (
        "import sys; from ekya import cli; cli.main(['doctor', '--runs', sys.argv[1]]); "
        "slow = ('torch', 'torchvision', 'ray', 'onnxruntime', 'pyarrow'); "
        "sys.exit(any(name in sys.modules for name in slow))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "This machine" in done.stdout
