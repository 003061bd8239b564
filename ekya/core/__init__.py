"""The words everything else is written in: ids, configurations, shares, events and commands."""
