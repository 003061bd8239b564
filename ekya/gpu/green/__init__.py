"""Shares by green contexts: dedicated multiprocessors."""
