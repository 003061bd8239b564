import sys
from pathlib import Path

# Tests are collected in importlib mode, which leaves their folder off the path.
sys.path.insert(0, str(Path(__file__).parent))
