"""GPU time of batches: overlapping ones count once, and each as soon as it is finished."""

import pytest
import torch
from fake_gpu import MS, FakeGpu
from hypothesis import given
from hypothesis import strategies as st

from ekya.gpu.backends.batch_meter import BatchMeter, start_cuda


def run_batches(spans, settle_every=1):
    """Meters batches of many threads on a GPU that reaches marks in time; returns nanoseconds.

    Args:
        spans: begin and end of each batch in milliseconds.
        settle_every: number of begins and ends after which the use is asked for.
    """
    gpu = FakeGpu()
    meter, inside, used_ns = BatchMeter(gpu.record_mark), {}, 0
    turns = sorted((t, kind, place) for place, span in enumerate(spans) for kind, t in enumerate(span))
    for turn, (t_ms, ends, place) in enumerate(turns):
        gpu.now_ns = t_ms * MS
        if ends:
            inside.pop(place).__exit__(None, None, None)
        else:
            inside[place] = meter.batch()
            inside[place].__enter__()
        if turn % settle_every == 0:
            used_ns += meter.settle_finished()
    return used_ns + meter.settle_finished()


def covered_ms(spans):
    return len({ms for first, end in spans for ms in range(first, end)})


SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 20)).map(lambda at: (at[0], sum(at))), max_size=8
)


@given(SPANS, st.integers(1, 5))
def test_batches_are_charged_the_time_that_they_cover(spans, settle_every):
    used_ns = run_batches(spans, settle_every)
    assert used_ns == covered_ms(spans) * MS
    assert all(used_ns >= (end - first) * MS for first, end in spans)


def test_batch_is_charged_while_others_go_on():
    """Threads of many cameras are never all outside at once."""
    gpu = FakeGpu()
    meter = BatchMeter(gpu.record_mark)
    with meter.batch():
        for _ in range(3):
            with meter.batch():
                gpu.now_ns += 10 * MS
            gpu.now_ns += 5 * MS
            assert meter.settle_finished() == 10 * MS
    assert meter.settle_finished() == 15 * MS


def test_unfinished_batch_is_charged_later_and_can_be_waited_for():
    gpu = FakeGpu()
    meter = BatchMeter(gpu.record_mark)
    for _ in range(2):
        with meter.batch():
            gpu.launch(10)
    assert meter.settle_finished() == 0
    meter.wait_until_under_way(1)
    assert (gpu.now_ns, meter.settle_finished()) == (10 * MS, 10 * MS)
    meter.wait_until_under_way(1)
    assert gpu.waits == 1
    gpu.now_ns += 10 * MS
    assert meter.settle_finished() == 10 * MS


def test_torch_marks_are_timed_events_on_the_threads_stream(monkeypatch):
    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            self.stream = stream

    started = []
    monkeypatch.setattr(torch.cuda, "init", lambda: started.append(True))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream on {device}")
    record_mark = start_cuda()
    assert started
    assert record_mark().stream == "stream on 0"


def test_torch_has_every_call_of_a_mark():
    assert {"record", "query", "synchronize", "elapsed_time"} <= set(dir(torch.cuda.Event))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_torch_marks_tell_earlier_from_later():
    """A longer batch may begin before the one that is counted first."""
    record_mark = start_cuda()
    first, second = record_mark(), record_mark()
    torch.cuda.synchronize()
    assert second.elapsed_time(first) <= 0.0 <= first.elapsed_time(second)
