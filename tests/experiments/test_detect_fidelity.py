"""A live run beside the same fleet on virtual time, from folders that were written by hand."""

import pytest
from detect_fidelity import Row, rows_of, told
from detecting_run import FRAMES, STREET, answer, make_run

from ekya.results.storage.run_tables import prediction_writer


@pytest.fixture
def both(tmp_path):
    """Two runs: the emulated one misses the car in every second frame of window 1."""
    live, fleet = make_run(tmp_path / "live", (STREET,))
    emulated, _ = make_run(tmp_path / "emulated", (STREET,))
    missing = prediction_writer(emulated.predictions(STREET))
    for frame in range(FRAMES // 2, FRAMES, 2):
        missing.add(answer(frame, [], [], version=1))
    missing.flush()
    return live, emulated, fleet


def test_runs_are_compared_window_by_window_on_the_same_frames(both):
    first, second = rows_of(*both)
    assert first == Row(STREET, 0, 0.0, 0.0, live_retrained=False, emulated_retrained=False)
    assert (second.window, second.live, second.live_retrained, second.emulated_retrained) == (
        1,
        1.0,
        True,
        True,
    )
    assert second.emulated == pytest.approx(2 / 3), "of ten boxes and twenty cars, ten fit"
    figures = told([first, second])
    assert figures["difference"] == pytest.approx(-1 / 6)
    assert figures["mean_difference_by_window"] == pytest.approx(1 / 6)
    assert (figures["other_retrainings"], figures["met"]) == (0, False)
