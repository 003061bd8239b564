"""Tests of freezing loaded objects, in separate processes since a freeze would outlast the test."""

import json
import subprocess
import sys

SCRIPT = """
import gc, json, torch
from ekya.system.host import freeze_loaded
class Round: pass
lasting, rubbish = Round(), Round()
rubbish.itself = rubbish
loaded = len(gc.get_objects())
freeze_loaded()
left = len(gc.get_objects())
later = Round(); later.itself = later; del later
print(json.dumps([loaded, left, gc.collect()]))
"""


def test_freeze_collection_visits_only_later_objects():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    loaded, left, found = json.loads(done.stdout.splitlines()[-1])
    assert loaded > 100_000
    assert left < 100
    assert found > 0


ENDS = """
import gc, ekya.runtime.driver.run_session
from ekya.system.host import loaded_frozen
with loaded_frozen(): inside = gc.get_freeze_count()
print(inside, gc.get_freeze_count())
"""


def test_freeze_run_ends_without_library_warnings():
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=True)
    inside, after = map(int, done.stdout.split())
    assert inside > 100_000
    assert (after, done.stderr) == (0, "")
