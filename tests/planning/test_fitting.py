"""Fitted sizes, over machines and fleets, and the memory that a retraining is expected to need."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.configs import GOLDEN_RESOLUTION, RetrainConfig
from ekya.core.errors import UserError
from ekya.core.gpus import DidNotFit, Footprint
from ekya.core.host import HostCosts, StreamCosts
from ekya.core.profile import Family, FamilyCost
from ekya.core.units import StreamId
from ekya.planning.profiling.inference_profile import floor_milli
from ekya.planning.sizing.choose_sizes import choose_fleet_sizes
from ekya.planning.sizing.fleet_sizes import MachineSize, Wishes
from ekya.planning.sizing.gpu_memory import (
    JobCrops,
    MemoryBook,
    MemoryMarks,
    inference_bytes,
    retraining_bytes,
)

MACHINES = (500, 1000, 2000, 4000, 16_000, 64_000)
CAMERAS = (1, 4, 10, 20, 30)
FRAME_GPU_S = {32: 0.020, 24: 0.017, 16: 0.014}


def costs_of(cameras, times=1.0, fps=25.0, label_gpu_s=0.003, finding_gpu_s=0.0):
    frame_gpu_s = {side: times * gpu_s for side, gpu_s in FRAME_GPU_S.items()}
    return HostCosts(
        {
            StreamId(f"cam-{number}"): StreamCosts(fps, frame_gpu_s, finding_gpu_s)
            for number in range(1, cameras + 1)
        },
        times * label_gpu_s,
        tuple(
            FamilyCost(Family(blocks, 0, 16), times * 0.003, times * epoch_gpu_s)
            for blocks, epoch_gpu_s in ((0, 0.0001), (2, 0.009))
        ),
        cores=2.0,
    )


def nothing(**said):
    return Wishes(longest_part=0.15, least_epochs=4, least_data=0.5, labels=96, **said)


def check(fitted, costs):
    """Asserts that the parts of sizes add up."""
    sizes = fitted.sizes
    quantum = sizes.quantum_milli
    for milli in (sizes.capacity_milli, sizes.preparation_milli, sizes.steal_milli):
        assert milli > 0
        assert milli % quantum == 0
    floors = [
        math.ceil(floor_milli(of, sizes.every, sizes.resolutions) / quantum) * quantum
        for of in costs.streams.values()
    ]
    assert max(floors) <= 1000
    assert sizes.preparation_milli + sum(floors) <= sizes.capacity_milli
    assert 0 < sizes.preparation_part <= 0.15
    assert 1 <= sizes.prepared <= len(floors)
    assert set(sizes.resolutions) <= set(FRAME_GPU_S)
    assert sizes.trainable_blocks
    return sizes


@pytest.mark.parametrize("milli", MACHINES)
@pytest.mark.parametrize("cameras", CAMERAS)
@pytest.mark.parametrize("times", [0.2, 1.0, 6.0])
@pytest.mark.parametrize("tries", [False, True])
def test_fit_without_wishes_fits_or_names_remedy(milli, cameras, times, tries):
    costs = costs_of(cameras, times)
    try:
        sizes = check(choose_fleet_sizes(nothing(tries=tries), costs, MachineSize(milli)), costs)
    except UserError as error:
        assert milli < 10 + cameras * (1150 * times * FRAME_GPU_S[16] + 5)
        assert ("one camera is" if cameras == 1 else f"{cameras} cameras are") in str(error)
        assert f"{1000 * times * FRAME_GPU_S[16]:.3g} ms" in str(error)
        assert "--overload" in str(error)
        return
    assert sizes.capacity_milli <= milli
    budget_gpu_s = sizes.window_s * sizes.preparation_part * sizes.preparation_milli / 1000
    trial_gpu_s = times * 96 * (0.003 + 8 * 0.0001) if tries else 0.0
    label_gpu_s = times * 96 * 0.003
    assert budget_gpu_s >= label_gpu_s + trial_gpu_s or sizes.window_s == 300
    # Trials have a third of the time where not all streams can be labelled in it.
    places = budget_gpu_s * (2 / 3 if tries else 1.0) / label_gpu_s
    assert sizes.prepared == cameras <= places or 0 <= places - sizes.prepared < 1 or sizes.prepared == 1


@pytest.mark.parametrize("cameras", [1, 4, 10, 20])
@pytest.mark.parametrize("said", [None, 1000])
def test_fit_on_two_cores_runs_twenty_cameras(cameras, said):
    costs = costs_of(cameras)
    fitted = choose_fleet_sizes(nothing(capacity_milli=said), costs, MachineSize(2000))
    assert check(fitted, costs).capacity_milli == (said or 1500)
    coarser = [sentence for sentence in fitted.gave_up if sentence.startswith("λ: at most every")]
    assert bool(coarser) == (cameras > 1)


def test_fit_runs_as_many_cameras_as_refusal_says():
    def refusal(cameras):
        with pytest.raises(UserError) as caught:
            choose_fleet_sizes(nothing(), costs_of(cameras, times=3), MachineSize(1000))
        return str(caught.value)

    fitting = int(refusal(30).split(" of them fit")[0].split()[-1])
    costs = costs_of(fitting, times=3)
    check(choose_fleet_sizes(nothing(), costs, MachineSize(1000)), costs)
    refusal(fitting + 1)


def test_fit_of_camera_beyond_a_gpu_raises():
    with pytest.raises(UserError, match="0 of them fit"):
        choose_fleet_sizes(nothing(), costs_of(1, times=80), MachineSize(64_000))


def test_fit_with_overload_never_raises():
    for said in (nothing(), nothing(quantum_milli=50), nothing(preparation_milli=700)):
        sizes = choose_fleet_sizes(said, costs_of(30, times=10), MachineSize(500), overload=True).sizes
        assert sizes.preparation_milli + 30 * sizes.quantum_milli <= sizes.capacity_milli
        assert sizes.prepared >= 1


@pytest.mark.parametrize(
    ("recorded_s", "windows", "window_s"),
    [
        (None, None, 16.0),
        (600.0, None, 16.0),
        (37.7, None, 9.5),
        (37.7, 2, 16.0),
        (20.0, 2, 10.0),
        (20.0, 1, 10.0),
        (8.0, 9, 8.0),
    ],
)
def test_fit_holds_several_windows_in_the_shortest_recording(recorded_s, windows, window_s):
    costs = costs_of(2)
    first, second = costs.streams.values()
    costs = replace(costs, streams={"a": first, "b": replace(second, length_s=recorded_s)})
    assert fitted_window_s(nothing(windows=windows), costs) == window_s
    assert fitted_window_s(nothing(windows=windows, window_s=50.0), costs) == 50.0


@pytest.mark.parametrize(
    ("label_gpu_s", "labels"), [(0.001, 24), (0.035, 24), (0.04, 21), (0.1, 8), (9.0, 4)]
)
def test_fit_labels_fewer_frames_where_windows_are_too_short_for_all(label_gpu_s, labels):
    costs = replace(costs_of(1), label_gpu_s=label_gpu_s)
    wishes = Wishes(
        longest_part=0.15, least_epochs=4, least_data=0.5, labels=24, least_labels=4, window_s=8.0
    )
    sizes = choose_fleet_sizes(wishes, costs, MachineSize(2000)).sizes
    assert sizes.preparation_milli == 900
    assert sizes.labels == labels
    # A number that the file sets stays.
    assert choose_fleet_sizes(replace(wishes, least_labels=None), costs, MachineSize(2000)).sizes.labels == 24


def fitted_window_s(wishes, costs):
    return choose_fleet_sizes(wishes, costs, MachineSize(2000)).sizes.window_s


@pytest.mark.parametrize(
    ("golden_s", "offered"), [(None, ()), (0.01, (3, 5, 9, 15)), (0.3, (9, 15)), (9.0, ())]
)
def test_fit_offers_the_golden_detector_where_it_keeps_up_with_a_camera(golden_s, offered):
    costs = costs_of(2)
    if golden_s is not None:
        first, _ = costs.streams.values()
        asked = replace(first, frame_gpu_s={**first.frame_gpu_s, GOLDEN_RESOLUTION: golden_s})
        costs = replace(costs, streams={"a": asked, "b": replace(asked, fps=60.0)})
    sizes = choose_fleet_sizes(nothing(), costs, MachineSize(2000)).sizes
    assert sizes.golden_every == offered
    assert choose_fleet_sizes(nothing(golden_every=()), costs, MachineSize(2000)).sizes.golden_every == ()


def test_fit_keeps_wishes_that_fit():
    said = nothing(
        capacity_milli=1200,
        window_s=21.0,
        quantum_milli=50,
        steal_milli=150,
        preparation_milli=700,
        preparation_part=0.1,
        prepared=3,
        every=(1, 2, 25),
        resolutions=(32,),
        trainable_blocks=(2,),
    )
    fitted = choose_fleet_sizes(said, costs_of(4), MachineSize(64_000))
    milli = ("capacity_milli", "quantum_milli", "steal_milli", "preparation_milli")
    for key in (*milli, "window_s", "prepared"):
        assert getattr(fitted.sizes, key) == getattr(said, key)
    assert fitted.sizes.every == (1, 2, 25)
    assert (fitted.sizes.resolutions, fitted.sizes.trainable_blocks) == ((32,), (2,))


@pytest.mark.parametrize(("reading_s", "capacity_milli"), [(0.0, 1500), (0.003, 1500), (0.010, 800)])
def test_fit_leaves_room_for_reading_heavy_video(reading_s, capacity_milli):
    costs = costs_of(4)
    read = {stream: replace(of, reading_s=reading_s) for stream, of in costs.streams.items()}
    fitted = choose_fleet_sizes(nothing(), replace(costs, streams=read), MachineSize(2000))
    assert fitted.sizes.capacity_milli == capacity_milli
    assert any(said.startswith("cores: reading the cameras") for said in fitted.gave_up) == (
        reading_s == 0.010
    )
    on_gpus = choose_fleet_sizes(nothing(), replace(costs, streams=read), MachineSize(2000, on_cores=False))
    assert on_gpus.sizes.capacity_milli == 2000


def test_fit_lowers_file_of_larger_machine():
    said = nothing(capacity_milli=1200, window_s=21.0, preparation_milli=700, every=(1, 2, 3, 5, 10))
    fitted = choose_fleet_sizes(said, costs_of(4, fps=10.0), MachineSize(500))
    check(fitted, costs_of(4, fps=10.0))
    assert fitted.sizes.capacity_milli == 360
    lowered = "gpus: 1.2 is lowered to 0.36, of 0.5 cores that are there; the rest decodes video and plans"
    assert lowered in fitted.gave_up
    assert any(sentence.startswith("preparation.share_milli: 700 is lowered") for sentence in fitted.gave_up)


def test_fit_on_virtual_time_takes_half_of_need():
    for cameras in CAMERAS:
        costs = costs_of(cameras)
        fitted = choose_fleet_sizes(nothing(), costs, MachineSize(None))
        every_frame_milli = 1000 * cameras * 25 * FRAME_GPU_S[32] * 1.15
        assert 0 <= 2 * check(fitted, costs).capacity_milli - every_frame_milli < 1000 or cameras < 4


@pytest.mark.parametrize(("cameras", "draws"), [(1, True), (20, False)])
def test_fit_draws_frames_for_few_cameras_only(cameras, draws):
    for finding_gpu_s, drawn in ((0.014, draws), (0.0, True)):
        costs = costs_of(cameras, finding_gpu_s=finding_gpu_s)
        fitted = choose_fleet_sizes(nothing(), costs, MachineSize(2000))
        assert check(fitted, costs).draws_frames == drawn
        assert any("frames that are analysed anyway" in one for one in fitted.gave_up) != drawn
        for said in (True, False):
            assert (
                choose_fleet_sizes(nothing(draws_frames=said), costs, MachineSize(2000)).sizes.draws_frames
                == said
            )


@pytest.mark.parametrize(("cameras", "kept"), [(1, 0.4), (4, 0.4), (10, 0.0), (20, 0.0)])
def test_fit_drops_minimum_that_starves_retraining(cameras, kept):
    costs = costs_of(cameras)
    fitted = choose_fleet_sizes(nothing(), costs, MachineSize(2000))
    assert check(fitted, costs).min_accuracy == kept
    assert any(one.startswith("min_accuracy: none") for one in fitted.gave_up) == (kept == 0.0)
    assert choose_fleet_sizes(nothing(min_accuracy=0.3), costs, MachineSize(2000)).sizes.min_accuracy == 0.3
    larger = nothing(min_accuracy=0.4, capacity_milli=4000)
    assert choose_fleet_sizes(larger, costs, MachineSize(2000)).sizes.min_accuracy == (
        0.4 if cameras < 10 else 0.0
    )


def test_fit_on_slow_machine_retrains_heads_only():
    costs = costs_of(4, times=20)
    fitted = choose_fleet_sizes(nothing(window_s=16.0), costs, MachineSize(64_000))
    assert check(fitted, costs).trainable_blocks == (0,)
    assert any(sentence.startswith("γ: ") for sentence in fitted.gave_up)


@given(
    st.lists(st.tuples(st.floats(0.2, 120.0), st.floats(1e-4, 0.5)), min_size=1, max_size=30),
    st.sampled_from(MACHINES) | st.integers(100, 64_000),
    st.booleans(),
    st.floats(1e-5, 0.1),
    st.sampled_from([None, 300, 900]),
    st.sampled_from([None, 10, 50]),
)
def test_fit_sizes_add_up_or_name_what_is_given_up(
    cameras, milli, on_cores, label_gpu_s, preparation, quantum
):
    costs = HostCosts(
        {
            StreamId(f"cam-{number}"): StreamCosts(fps, {32: gpu_s, 24: 0.8 * gpu_s, 16: 0.6 * gpu_s})
            for number, (fps, gpu_s) in enumerate(cameras)
        },
        label_gpu_s,
        costs_of(1).families,
        cores=1.0,
    )
    said = nothing(preparation_milli=preparation, quantum_milli=quantum)
    machine = MachineSize(milli, on_cores)
    try:
        check(choose_fleet_sizes(said, costs, machine), costs)
    except UserError as error:
        assert "\n" not in str(error)
        sizes = choose_fleet_sizes(said, costs, machine, overload=True).sizes
        assert sizes.preparation_milli > 0


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
