"""``python -m ekya``: the command line."""

import sys

from ekya.cli import main

if __name__ == "__main__":
    sys.exit(main())
