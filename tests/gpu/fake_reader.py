"""Fake of a GPU's counters."""

from ekya.gpu.window_meter import Reading


class Reader:
    """Returns the given memory use, one value per reading; each reading adds 100 J."""

    uuid, sm_from = "GPU-1", "sm-utilization"

    def __init__(self, *used_bytes):
        self.used_bytes, self.joules = list(used_bytes) or [0], 0.0

    def read_counters(self):
        self.joules += 100.0
        used = self.used_bytes.pop(0) if len(self.used_bytes) > 1 else self.used_bytes[0]
        return Reading(1 << 36, used, 0.9, 300.0, self.joules)

    def free_bytes(self):
        return 0

    def close(self):
        pass
