"""Tests of mapping a camera's pictures to an even time grid: the picture of each slot, and gaps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ekya.streams.ingest.recorder import FrameGrid, Gap

S = 1_000_000


def picture(number):
    return np.full((2, 2, 3), number, np.uint8)


def grid(fps=10.0, limit=100):
    """Returns a grid, and the list of picture numbers that it has put."""
    put = []
    return FrameGrid(fps, limit, lambda image: put.append(int(image[0, 0, 0]))), put


def test_grid_slot_holds_newest_picture_by_its_time():
    slots, put = grid()
    for t_us, number in ((-50_000, 1), (0, 2), (90_000, 3), (100_001, 4), (310_000, 5)):
        slots.show_picture(t_us, picture(number))
    slots.fill_slots(400_000)
    assert put == [2, 3, 4, 4, 5]
    assert slots.repeated == 1
    assert slots.gaps == []


@given(
    st.lists(st.integers(1, 400_000), max_size=30),
    st.sampled_from([0.5, 7.0, 14.99, 25.0]),
)
def test_grid_any_arrivals_give_newest_earlier_picture(steps, fps):
    slots, put = grid(fps)
    times = [0, *np.cumsum(steps).tolist()]
    for number, t_us in enumerate(times):
        slots.show_picture(t_us, picture(number))
    slots.fill_slots(times[-1])
    due = [round(slot * S / fps) for slot in range(100)]
    assert put == [sum(t <= at for t in times) - 1 for at in due if at <= times[-1]]


def test_grid_loss_is_a_gap_from_last_to_next_picture():
    slots, put = grid()
    slots.show_picture(0, picture(1))
    slots.show_picture(100_000, picture(2))
    slots.fill_slots(500_000)
    slots.note_loss("it burnt")
    slots.show_picture(720_000, picture(3))
    slots.fill_slots(900_000)
    assert put == [1, 2, 2, 2, 2, 2, 2, 2, 3, 3]
    assert slots.gaps == [Gap(2, 8, "it burnt")]
    assert slots.repeated == 0
    slots.close_gap()
    assert slots.repeated == 1


def test_grid_loss_to_the_end_is_a_gap_to_the_end():
    slots, put = grid(limit=6)
    slots.show_picture(0, picture(1))
    slots.note_loss("it burnt")
    slots.fill_slots(9 * S)
    assert slots.full
    assert len(put) == 6
    slots.close_gap()
    assert slots.gaps == [Gap(1, 6, "it burnt")]


def test_grid_loss_between_slots_is_no_gap():
    slots, _ = grid()
    slots.show_picture(0, picture(1))
    slots.note_loss("for a moment")
    slots.show_picture(50_000, picture(2))
    slots.fill_slots(100_000)
    slots.close_gap()
    assert slots.gaps == []
