from ekya.core.units import StreamId
from ekya.planning.profiling.pruning import in_need


def test_those_in_need_come_worst_first_and_accurate_models_are_left_alone():
    accuracies = {StreamId("a"): 0.9, StreamId("b"): 1.0, StreamId("c"): 0.4, StreamId("d"): 0.95}
    assert in_need(accuracies) == ("c", "a")
