"""Retrainings that a server offers and spare capacity that it lends, valued by its own scheduler."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from loan_cases import S, losses, offer, room

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.fleet.policy.offers import CropCounts, LinkSizes, best_with_room, offers
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.rooms import room as room_of
from ekya.planning.schedulers.registry import make_scheduler
from ekya.testing import window_views

SITE, SIZES = SiteName("here"), LinkSizes(0.003, 45.0, (33.6, 8.4), 512, 6, 120)
HEAD, BLOCK = RetrainConfig(5, 16, 64, 0, 0.5), RetrainConfig(5, 16, 0, 1, 1.0)
LABELLED = CropCounts(400)
plan = make_scheduler("thief").plan


def stream(name, *options, accuracy=0.5, needs=200):
    lambdas = (
        InferenceOption(InferenceConfig(1, 32), 1.0, needs),
        InferenceOption(InferenceConfig(10, 32), 0.7, needs // 10),
    )
    return StreamView(StreamId(name), accuracy, options, lambdas)


def view(*streams, capacity=1000):
    return WindowView(20 * S, 200 * S, capacity, 50, 100, 0.0, streams, LINEAR)


def offered(one, crops=LABELLED):
    labelled = {stream.stream: crops for stream in one.streams}
    return list(offers(SITE, one, plan, labelled, SIZES))


def test_the_config_offered_is_what_a_gpu_of_its_own_would_bring_most_with() -> None:
    quick, thorough = RetrainOption(HEAD, 0.7, 20.0), RetrainOption(BLOCK, 0.75, 60.0)
    assert best_with_room(stream("cam", quick, thorough), view()) == quick
    assert (
        best_with_room(stream("cam", quick, replace(thorough, accuracy_after=0.85)), view()).config == BLOCK
    )
    assert best_with_room(stream("cam", RetrainOption(BLOCK, 0.9, 181.0)), view()) is None
    assert best_with_room(stream("cam", RetrainOption(HEAD, 0.4, 1.0)), view()) is None


def test_an_offer_says_what_crosses_links_and_what_training_takes() -> None:
    (one,) = offered(view(stream("cam", RetrainOption(HEAD, 0.7, 20.0))))
    assert (one.site, one.stream, one.config, one.epochs, one.gpu_s) == (SITE, "cam", HEAD, 5, 20.0)
    assert (one.now_us, one.until_us) == (20 * S, 200 * S)
    assert one.crops_mb == pytest.approx(1.2)
    assert (one.model_mb, one.back_mb) == (45.0, 2 * SIZES.trained_mb(HEAD))


def test_exemplars_and_crops_to_validate_with_are_sent_too() -> None:
    (one,) = offered(view(stream("cam", RetrainOption(HEAD, 0.7, 20.0))), CropCounts(400, 90, 60))
    assert one.crops_mb == pytest.approx(1.65)
    assert one.sent_mb() == pytest.approx(46.65)


def test_what_is_trained_is_the_head_and_blocks_from_the_last_one_on() -> None:
    assert SIZES.trained_mb(HEAD) == pytest.approx(4e-6 * (513 * 64 + 65 * 6))
    assert SIZES.trained_mb(BLOCK) == pytest.approx(33.6 + 4e-6 * 513 * 6)
    assert SIZES.trained_mb(replace(BLOCK, trainable_blocks=2)) == pytest.approx(42.0 + 4e-6 * 513 * 6)


def test_a_retraining_that_its_server_cannot_do_costs_nothing_at_home() -> None:
    option = RetrainOption(HEAD, 0.7, 20.0)
    crowd = [stream(f"cam-{place}", option, needs=1000) for place in range(8)]
    alone, crowded = offered(view(stream("cam", option))), offered(view(*crowd, capacity=400))
    assert alone[0].at_home > 0.0
    assert min(one.at_home for one in crowded) == 0.0
    # The gain covers only answers that are wrong for lack of a better model.
    assert alone[0].gain == pytest.approx(0.2)
    assert 0.0 < crowded[0].gain < 0.2


@given(window_views())
def test_offers_are_of_streams_that_could_be_retrained_and_gain_by_it(one) -> None:
    options = {stream.stream: stream.retrain_options for stream in one.streams}
    for made in offered(one):
        assert made.config in {option.config for option in options[made.stream]}
        assert made.gain >= 0.0
        assert made.at_home >= 0.0
        assert made.gain_if_arrives(made.until_us) <= 0.0
        assert made.gain_if_arrives(made.now_us) >= made.gain_if_arrives(made.now_us + 1)


def test_what_lies_at_a_server_need_not_be_sent() -> None:
    there = SiteName("there")
    one = offer(held_by=there)
    assert one.sent_mb(SiteName("elsewhere")) == one.sent_mb() == pytest.approx(46.2)
    assert one.sent_mb(there) == 0.0


@given(window_views())
def test_a_room_costs_more_the_more_of_it_is_lent(one) -> None:
    made = room_of(SITE, one, plan, [100, 200, 400], 100)
    assert all(less <= more for less, more in pairwise((0.0, *made.loss)))
    assert len(made.loss) in (0, 1, 2, 4)
    least = len(one.streams) * one.quantum_milli
    assert one.capacity_milli - 100 * len(made.loss) >= least or not made.loss


def test_who_has_nothing_to_do_lends_for_nothing() -> None:
    lent = room_of(SITE, view(stream("cam")), plan, [100, 200, 400, 800, 900], 100)
    assert lent.loss[:8] == (0.0,) * 8
    assert lent.loss[8] == pytest.approx(0.5 * 0.3)


def test_a_loan_during_which_own_retrainings_end_costs_all_that_they_are_late() -> None:
    """200 of 1000 milli serve; 40 GPU-seconds take 50 s on the rest, 80 s with 300 lent, 400 s with 700."""
    one = view(stream("cam", RetrainOption(HEAD, 0.9, 40.0)))
    lent = room_of(SITE, one, serves_first, [300, 700], 100)
    late_s, left_s = 80.0 - 50.0, 180.0
    assert lent.loss[2] * 80.0 == pytest.approx(0.4 * late_s)
    # With a tenth of a GPU the retraining never ends, so its gain is missing all the time.
    assert lent.loss[6] * left_s == pytest.approx(0.4 * left_s)


def serves_first(asked):
    """Returns a plan that serves at 200 milli and gives the retraining the rest."""
    (cam,) = asked.streams
    lam, gamma = cam.inference_options[0].config, cam.retrain_options[0].config
    given = Assignment(cam.stream, gamma, asked.capacity_milli - 200, lam, 200, False, "")
    return Plan((Phase((given,)),), 0.0)


@given(losses)
def test_beside_a_share_the_rest_costs_what_both_cost_more(loss) -> None:
    whole = room("a", loss)
    for lent in range(len(loss) + 1):
        left = whole.beside_share(100 * lent)
        for more in range(1, len(loss) - lent + 1):
            both = whole.loss_of_share(100 * (lent + more))
            assert whole.loss_of_share(100 * lent) + left.loss_of_share(100 * more) == pytest.approx(both)
        assert len(left.loss) == len(loss) - lent
