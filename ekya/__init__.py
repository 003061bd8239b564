"""Ekya: continuous learning of video-analytics models on an edge GPU server (NSDI'22)."""

__version__ = "0.2.0.dev0"
