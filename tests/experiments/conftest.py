import sys
from pathlib import Path

# The checks on a GPU are tested on the same GPU that is not there as the share backends.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
