"""Claims on GPU memory: none is promised twice."""

from hypothesis import given
from hypothesis import strategies as st

from ekya.planning.placement.promised_memory import Claim, MemoryBook

GPUS = st.integers(0, 1)
jobs = st.lists(st.tuples(GPUS, st.integers(0, 50)), max_size=8)


@given(jobs, st.integers(0, 100))
def test_memory_book_never_promises_more_than_free(asked, free_bytes):
    book = MemoryBook()
    for job, (gpu, size_bytes) in enumerate(asked):
        if book.has_room(gpu, size_bytes, free_bytes):
            book = book.with_claim(Claim(job, gpu, size_bytes))
    assert all(book.promised_bytes(gpu) <= free_bytes for gpu in (0, 1))


def test_memory_book_without_claim_frees_it():
    book = MemoryBook().with_claim(Claim("a", 0, 60)).with_claim(Claim("b", 0, 30))
    assert not book.has_room(0, 20, 100)
    assert book.has_room(1, 20, 100)
    assert book.without_claim("a").has_room(0, 70, 100)
    assert not book.without_claim("a").has_room(0, 71, 100)
    assert book.without_claim("nobody") == book
