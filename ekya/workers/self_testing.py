"""The self-test of this machine: as it was kept, or made now and kept."""

from collections.abc import Sequence

from ekya.learning.forward import SelfTest
from ekya.learning.self_test import choose_way
from ekya.workers.self_test_file import key_here, load_self_test, save_self_test, self_tests_path


def self_test(architecture: str, device: str, sides: Sequence[int], *, again: bool = False) -> SelfTest:
    """How forward passes are run on this machine, and why.

    Args:
        architecture: of the edge model.
        device: torch's name.
        sides: resolutions of Λ in pixels.
        again: test anew, whatever was kept.
    """
    key, path = key_here(device, architecture, sides), self_tests_path()
    kept = None if again else load_self_test(path, key)
    if kept is not None:
        return kept
    made = choose_way(architecture, device, sides)
    save_self_test(path, key, made)
    return made
