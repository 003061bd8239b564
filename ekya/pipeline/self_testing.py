"""Self-test of this machine, cached on disk."""

from collections.abc import Sequence

from ekya.models.edge.forward import SelfTest
from ekya.models.edge.self_test import choose_way
from ekya.pipeline.self_test_file import key_here, load_self_test, save_self_test, self_tests_path


def self_test(architecture: str, device: str, sides: Sequence[int], *, again: bool = False) -> SelfTest:
    """Returns the fastest way to run forward passes on this machine, and the reasons.

    Args:
        architecture: of the edge model.
        device: torch's name.
        sides: resolutions of Λ in pixels.
        again: run the test even if a result is cached.
    """
    key, path = key_here(device, architecture, sides), self_tests_path()
    kept = None if again else load_self_test(path, key)
    if kept is not None:
        return kept
    made = choose_way(architecture, device, sides)
    save_self_test(path, key, made)
    return made
