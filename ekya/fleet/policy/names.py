"""Typed names of jobs, nodes and sites; they are never parsed."""

from typing import NewType

JobName = NewType("JobName", str)
"""Name of a training job."""

NodeName = NewType("NodeName", str)
"""Name of a machine that can train."""

SiteName = NewType("SiteName", str)
"""Name of a place with machines and data: an edge server, a cloudlet."""

STORES = SiteName("stores")
"""Site of the updates of stored models, which the driver of a run offers."""
