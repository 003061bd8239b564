import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Scripts that draw the samples of data sets also draw what these tests read.
for folder in (Path(__file__).parent, ROOT / "datasets" / "waymo"):
    sys.path.insert(0, str(folder))
