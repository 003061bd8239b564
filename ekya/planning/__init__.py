"""Pure decisions of a window: schedulers, profiling and placement."""
