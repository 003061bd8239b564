import sys
from pathlib import Path

# The script that draws the sample of a data set also draws what the tests read.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "datasets" / "waymo"))
sys.path.insert(0, str(Path(__file__).parent))
