"""Names of things in a fleet. Identities are typed values; nothing ever parses them."""

from typing import NewType

JobName = NewType("JobName", str)
"""One training that somebody wants done."""

NodeName = NewType("NodeName", str)
"""One machine that can train."""

SiteName = NewType("SiteName", str)
"""Where machines stand together and data comes up: an edge server, a cloudlet."""
