"""In a process of its own: niceness cannot be taken back."""

import json
import subprocess
import sys

SCRIPT = """
import json, os, threading
from ekya.runtime.standing_back import stand_back
go = threading.Event()
waiting = threading.Thread(target=go.wait); waiting.start()
before = os.getpriority(os.PRIO_PROCESS, 0)
stand_back()
threads = [int(task) for task in os.listdir("/proc/self/task")]
print(json.dumps([before, [os.getpriority(os.PRIO_PROCESS, one) for one in threads]]))
go.set()
"""


def test_every_thread_of_a_worker_stands_back():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    assert len(after) >= 2
    assert set(after) == {max(5, before)}
