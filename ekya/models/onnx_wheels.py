"""Finds the installed one of onnxruntime's two wheels, and what that means for a GPU; does not import it.

The wheel for CPUs and the one for NVIDIA GPUs share an import name and a folder: only one may be installed.
"""

from importlib.metadata import PackageNotFoundError, version

CPU_WHEEL, GPU_WHEEL = "onnxruntime", "onnxruntime-gpu"

_REMEDY = f"`pip uninstall --yes {CPU_WHEEL}`, then `pip install --force-reinstall --no-deps {GPU_WHEEL}`"


def installed_wheels() -> dict[str, str]:
    """Returns the versions of the installed wheels, by name."""
    found = {}
    for name in (CPU_WHEEL, GPU_WHEEL):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def onnxruntime_version() -> str:
    """Returns the version of onnxruntime; with the names of the wheels where it is not the CPU's alone."""
    wheels = installed_wheels()
    if wheels.keys() == {CPU_WHEEL}:
        return wheels[CPU_WHEEL]
    return ", ".join(f"{name} {number}" for name, number in wheels.items())


def why_no_cuda() -> str | None:
    """Returns why the installed wheels have no CUDA, and the remedy, as a clause; None where one has it."""
    wheels = installed_wheels()
    if wheels.keys() == {GPU_WHEEL}:
        return None
    both = f"{CPU_WHEEL} and {GPU_WHEEL} are both installed and overwrite each other's files"
    return f"{both if len(wheels) > 1 else f'the installed {CPU_WHEEL} has no CUDA'}: {_REMEDY}"
