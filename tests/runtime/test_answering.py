"""Tests of what is known of a process that was killed."""

import subprocess
import sys

from ekya.runtime.actors.answering import AnsweringMark

_DIES = """
import os, signal, sys
from ekya.runtime.actors.answering import AnsweringMark
mark = AnsweringMark(sys.argv[1])
with mark.answering(["cam-1", "cam-2", "cam-3"]):
    pass
{call}
os.kill(os.getpid(), signal.SIGKILL)
"""


def answering_at_death(call):
    mark = AnsweringMark()
    command = [sys.executable, "-c", _DIES.format(call=call), mark.path]
    assert subprocess.run(command, check=False).returncode < 0
    try:
        return mark.read_streams()
    finally:
        mark.close()


def test_streams_that_a_killed_process_was_answering_are_known():
    assert answering_at_death('mark.write_streams(["north gate", "cam-2"])') == {"north gate", "cam-2"}
    assert answering_at_death("") == frozenset(), "none was being answered"


def test_mark_that_cannot_be_opened_is_reported_and_others_work(caplog):
    mark = AnsweringMark("/proc/self/fd/none")
    mark.write_streams(["cam-1"])
    assert mark.read_streams() == {"cam-1"}
    assert "charged to all of its streams" in caplog.text
    mark.close()
