"""Tests of lowered priority, in a separate process since niceness cannot be reduced again."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, threading
from ekya.system.priority import GUEST_NICENESS, NICENESS, lower_priority
go = threading.Event()
waiting = threading.Thread(target=go.wait); waiting.start()
before = os.getpriority(os.PRIO_PROCESS, 0)
lower_priority({niceness})
threads = [int(task) for task in os.listdir("/proc/self/task")]
print(json.dumps([before, [os.getpriority(os.PRIO_PROCESS, one) for one in threads]]))
go.set()
"""


@pytest.mark.parametrize(("niceness", "at_least"), [("", 5), ("NICENESS", 5), ("GUEST_NICENESS", 10)])
def test_lower_priority_covers_all_threads_and_guests_more(niceness, at_least):
    script = SCRIPT.format(niceness=niceness)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    assert len(after) >= 2
    assert set(after) == {max(at_least, before)}
