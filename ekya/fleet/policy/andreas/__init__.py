"""ANDREAS: schedules jobs on the GPUs of heterogeneous nodes by energy cost and tardiness cost."""
