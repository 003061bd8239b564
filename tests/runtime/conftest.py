import sys
from pathlib import Path

# The RTSP camera stands with the tests of sources.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "streams"))
