"""Okita (Han et al., "Online Scheduling Unbiased Distributed Learning over Wireless Edge Networks").

Includes our variant. Everything is decided anew at the beginning of each slot.
"""
