"""This machine: files, memory, processes, CPU and cgroup limits, and checks of its arithmetic."""
