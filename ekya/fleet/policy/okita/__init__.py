"""Okita (Han et al., "Online Scheduling Unbiased Distributed Learning over Wireless Edge Networks").

Its baselines are here too, and what we make of it. Everything is decided anew at the beginning of each slot.
"""
