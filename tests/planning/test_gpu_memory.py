"""Expected memory of a retraining, and its correction by earlier ones."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.configs import RetrainConfig
from ekya.core.gpus import DidNotFit, Footprint
from ekya.core.profile import Family
from ekya.planning.sizing.gpu_memory import (
    JobCrops,
    MemoryBook,
    MemoryMarks,
    inference_bytes,
    retraining_bytes,
)

FOOTPRINT = Footprint(
    model_bytes=1000,
    trained_bytes=100,
    input_bytes=10,
    boundary_bytes=4,
    passing_bytes=20,
    saved_bytes=50,
    forward_crops=2,
)
GAMMA = RetrainConfig(5, 16, 0, 1, 0.5)
HEAD, BLOCK = Family(0, 0, 16), Family(1, 0, 16)


def test_retraining_bytes_of_few_crops_follow_batch():
    """9 crops of 4 bytes are kept, a batch of 16 takes 50 + 20 bytes each, and 100 bytes have state twice."""
    assert retraining_bytes(FOOTPRINT, GAMMA, JobCrops(10, 4)) == 1000 + 9 * 4 + 16 * 70 + 200


def test_retraining_bytes_of_many_crops_follow_preparation():
    crops = JobCrops(1000, 100, exemplars=20)
    assert retraining_bytes(FOOTPRINT, GAMMA, crops) == 1000 + 620 * (2 * 10 + 2 * 4) + 2 * 20 + 100


def test_inference_bytes_hold_the_next_model():
    assert inference_bytes(FOOTPRINT) == 2000 + 2 * (20 + 20)


gammas = st.builds(
    RetrainConfig,
    st.integers(1, 9),
    st.integers(2, 64),
    st.just(0),
    st.just(1),
    st.sampled_from([0.1, 0.5, 1.0]),
)


@given(gammas, gammas, st.integers(0, 400))
def test_did_not_fit_never_rules_out_smaller_gamma(one, other, training):
    crops = JobCrops(training, 10)
    if DidNotFit.from_config(one).rules_out(other):
        assert retraining_bytes(FOOTPRINT, one, crops) <= retraining_bytes(FOOTPRINT, other, crops)


@given(gammas, st.integers(0, 400), st.integers(0, 100))
def test_retraining_bytes_ignore_epochs(gamma, training, validation):
    crops = JobCrops(training, validation)
    longer = replace(gamma, epochs=gamma.epochs + 3)
    assert retraining_bytes(FOOTPRINT, gamma, crops) == retraining_bytes(FOOTPRINT, longer, crops)


def test_marks_empty_keep_estimate():
    assert MemoryMarks().corrected_estimate(HEAD, 1000) == 1000


def test_marks_of_own_family_correct_both_ways():
    marks = MemoryMarks().with_mark(HEAD, 1000, 500).with_mark(BLOCK, 1000, 1500)
    assert marks.corrected_estimate(HEAD, 2000) == 1000
    assert marks.corrected_estimate(BLOCK, 2000) == 3000


def test_marks_keep_highest_ratio():
    marks = MemoryMarks().with_mark(HEAD, 1000, 800).with_mark(HEAD, 1000, 300)
    assert marks.corrected_estimate(HEAD, 1000) == 800


@pytest.mark.parametrize(("measured", "expected"), [(500, 1000), (1500, 1500)])
def test_marks_of_other_families_only_raise(measured, expected):
    assert MemoryMarks().with_mark(HEAD, 1000, measured).corrected_estimate(BLOCK, 1000) == expected


GPUS = st.integers(0, 1)
jobs = st.lists(st.tuples(GPUS, st.integers(0, 50)), max_size=8)


@given(jobs, st.integers(0, 100))
def test_memory_book_never_promises_more_than_free(asked, free_bytes):
    book = MemoryBook()
    for job, (gpu, size_bytes) in enumerate(asked):
        if book.has_room(gpu, size_bytes, free_bytes):
            book = book.with_claim(job, gpu, size_bytes)
    assert all(book.promised_bytes(gpu) <= free_bytes for gpu in (0, 1))


def test_memory_book_without_claim_frees_it():
    book = MemoryBook().with_claim("a", 0, 60).with_claim("b", 0, 30)
    assert not book.has_room(0, 20, 100)
    assert book.has_room(1, 20, 100)
    assert book.without_claim("a").has_room(0, 70, 100)
    assert not book.without_claim("a").has_room(0, 71, 100)
    assert book.without_claim("nobody") == book
