"""λ that the host can carry: the row holds for every choice, and no stream is left without a λ."""

from hypothesis import given
from hypothesis import strategies as st

from ekya.core.configs import InferenceConfig
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, StreamView
from ekya.planning.profiling.host_row import fit_to_host


def stream(name, host_milli, kept, weight=1.0):
    """Returns a stream with λ of every frame, of every second one, ... and the accuracy that each keeps."""
    options = tuple(
        InferenceOption(InferenceConfig(every, 32), relative, 1, host_milli=-(-host_milli // every))
        for every, relative in enumerate(kept, start=1)
    )
    return StreamView(StreamId(name), 0.8, (), options, weight=weight)


STREAMS = st.lists(
    st.builds(
        stream,
        st.just("cam"),
        st.integers(0, 400),
        st.lists(st.floats(0.1, 1.0), min_size=1, max_size=5).map(lambda kept: sorted(kept, reverse=True)),
        st.floats(0.1, 5.0),
    ),
    min_size=1,
    max_size=12,
)


@given(STREAMS)
def test_dearest_choices_fit_unless_the_cheapest_do_not(streams):
    dearest = sum(max(one.host_milli for one in own.inference_options) for own in fit_to_host(streams))
    cheapest = sum(min(one.host_milli for one in own.inference_options) for own in streams)
    assert dearest <= max(1000, cheapest)


@given(STREAMS)
def test_every_stream_keeps_a_choice_and_where_all_fits_all(streams):
    fitted = fit_to_host(streams)
    assert all(own.inference_options for own in fitted)
    if sum(max(one.host_milli for one in own.inference_options) for own in streams) <= 1000:
        for own, before in zip(fitted, streams, strict=True):
            best = max(one.relative_accuracy for one in before.inference_options)
            assert max(one.relative_accuracy for one in own.inference_options) == best


def test_frames_go_where_they_are_worth_most():
    fast, slow = stream("fast", 600, (1.0, 0.5)), stream("slow", 600, (1.0, 0.9))
    fitted = fit_to_host((fast, slow))
    assert [max(one.host_milli for one in own.inference_options) for own in fitted] == [600, 300]
    fitted = fit_to_host((fast, stream("slow", 600, (1.0, 0.9), weight=10.0)))
    assert [max(one.host_milli for one in own.inference_options) for own in fitted] == [300, 600]
