"""Tests of lowered priority, in a separate process since niceness cannot be reduced again."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, threading
from ekya.system import priority
go = threading.Event()
waiting = threading.Thread(target=go.wait); waiting.start()
before = os.getpriority(os.PRIO_PROCESS, 0)
priority.lower_priority(priority.{niceness})
threads = [int(task) for task in os.listdir("/proc/self/task")]
print(json.dumps([before, [os.getpriority(os.PRIO_PROCESS, one) for one in threads]]))
go.set()
"""


@pytest.mark.parametrize(
    ("niceness", "at_least"), [("INFERENCE_NICENESS", 5), ("TRAINING_NICENESS", 10), ("GUEST_NICENESS", 15)]
)
def test_lower_priority_covers_all_threads(niceness, at_least):
    script = SCRIPT.format(niceness=niceness)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    assert len(after) >= 2
    assert set(after) == {max(at_least, before)}
