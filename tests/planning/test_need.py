from ekya.core.units import StreamId
from ekya.planning.profiling.pruning import in_need


def test_in_need_sorts_worst_first_and_skips_accurate():
    accuracies = {StreamId("a"): 0.9, StreamId("b"): 1.0, StreamId("c"): 0.4, StreamId("d"): 0.95}
    assert in_need(accuracies) == ("c", "a")
