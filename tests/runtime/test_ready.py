"""Tests that a run begins if at least one stream can be decoded."""

import pytest

from ekya.core.errors import UserError
from ekya.runtime.ready import Ready, require_frames


def test_a_run_begins_as_long_as_one_stream_can_be_decoded():
    dead, fine = Ready(None, "killed by signal SIGABRT"), Ready(None)
    require_frames({"cam-1": dead, "cam-2": fine})
    with pytest.raises(UserError, match=r"cam-1 since its decoder died \(killed by signal SIGABRT\)"):
        require_frames({"cam-2": dead, "cam-1": dead})
