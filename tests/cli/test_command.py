"""What all commands share."""

import signal

import pytest

from ekya.system.ctrl_c import remember_ctrl_c


def test_ctrl_c_that_an_inner_block_handles_ends_the_outer_one_too():
    handled = []
    with pytest.raises(KeyboardInterrupt), remember_ctrl_c():
        try:
            with remember_ctrl_c():
                try:
                    signal.raise_signal(signal.SIGINT)
                except KeyboardInterrupt:
                    handled.append("the run measures what there is")
        except KeyboardInterrupt:
            handled.append("the seeds before it are compared")
    assert handled == ["the run measures what there is", "the seeds before it are compared"]
