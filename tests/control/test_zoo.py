"""Models that are kept, found again after a drift, and serve."""

from dataclasses import replace

import pytest
from byhand import OPTIONS, A, B, S, Wish, labels, only, opened_1, retraining, started

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.profile import FamilyCurve
from ekya.core.units import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.core.weights import Compared, KeptModel, Scene

KEEPS = replace(OPTIONS, reacts_to_drift=True, zoo=2)
DAY, DUSK, NIGHT = (120, 130), (90, 80), (20, 10)
OLD = KeptModel(7, StreamId("elsewhere"), ModelVersion(3), 50, 0.9, Scene(DUSK, (5, 2), 40))


def shown(t_us, picture, stream=A, window=1, **changes):
    """Labels of which it is known what they show."""
    return replace(labels(t_us, stream, window), picture=picture, class_histogram=(3, 1), **changes)


def swapped(t_us, version, stream=A):
    return ev.ModelSwapped(t_us, stream, ModelVersion(version), JobId(version), 0.8, 0)


def drift(t_us, picture, stream=A):
    return ev.DriftDetected(t_us, stream, 1, t_us - S, "why", picture)


def offered(t_us, kept, new=0.9, old=0.5, stream=A, window=1):
    compared, likely = Compared(new, old, 12), Compared(new, old, 20)
    return ev.ModelOffered(t_us, stream, window, OLD.stream, OLD.version, compared, 0.77, 0.1, kept, likely)


def keeping(**changes):
    """Stream ``a`` is labelled by day in window 1, in which a zoo of one model was opened."""
    hand = opened_1(options=KEEPS, **changes)
    hand.give(101 * S, ev.ZooOpened(101 * S, (OLD,)))
    hand.give(105 * S, shown(105 * S, DAY), labels(105 * S, B))
    hand.end_preparation(110)
    return hand


def numbers(hand):
    return [model.number for model in hand.state.fleet.zoo]


def test_new_weights_are_kept_with_what_their_labels_showed():
    hand = keeping()
    (command,) = only(cmd.KeepModel, hand.give(120 * S, swapped(120 * S, 1)))
    model = KeptModel(8, A, ModelVersion(1), 120 * S, 0.8, Scene(DAY, (3, 1), 400))
    assert command == cmd.KeepModel(A, model, ())
    assert hand.state.fleet.zoo == (OLD, model)
    assert hand.stream().kept == 8


def test_newer_weights_of_the_scene_replace_those_of_a_checkpoint():
    hand = keeping()
    hand.give(120 * S, swapped(120 * S, 1))
    (command,) = only(cmd.KeepModel, hand.give(121 * S, swapped(121 * S, 2)))
    assert (command.model.number, command.forget) == (9, (8,))
    assert numbers(hand) == [7, 9]


def test_least_recently_used_is_forgotten_and_an_adopted_one_is_not():
    hand = keeping()
    hand.give(120 * S, swapped(120 * S, 1))
    hand.give(130 * S, drift(130 * S, DUSK))
    hand.give(131 * S, shown(131 * S, DUSK, since_us=129 * S))
    hand.give(132 * S, offered(132 * S, 7))
    assert numbers(hand) == [8, 7]
    hand.give(133 * S, ev.ModelAdopted(133 * S, A, ModelVersion(2), OLD.stream, OLD.version, 0.77, 0, 7))
    assert hand.stream().kept == 7
    hand.give(140 * S, shown(140 * S, NIGHT, B))
    (command,) = only(cmd.KeepModel, hand.give(141 * S, swapped(141 * S, 1, B)))
    assert command.forget == (8,)
    assert numbers(hand) == [7, 9]


def test_drift_names_the_kept_models_of_what_the_stream_shows_now():
    hand = keeping()
    hand.give(120 * S, swapped(120 * S, 1))
    (begun,) = only(cmd.BeginPreparation, hand.give(130 * S, drift(130 * S, DUSK)))
    assert begun.streams == (cmd.PrepareStream(A, (), (), 129 * S, (7,), 8),)


def test_window_names_the_kept_models_of_the_newest_scene():
    hand = keeping()
    hand.give(120 * S, swapped(120 * S, 1))
    hand.give(150 * S, drift(150 * S, DUSK))
    hand.give(151 * S, shown(151 * S, DUSK, since_us=149 * S))
    hand.end_preparation(160, 1, 1)
    turn = hand.open_window(2)
    (begun,) = only(cmd.BeginPreparation, turn)
    assert {one.stream: (one.candidates, one.kept) for one in begun.streams} == {A: ((7,), 8), B: ((), None)}


def test_labels_of_the_window_before_a_drift_do_not_hide_its_scene():
    hand = keeping()
    hand.give(190 * S, drift(190 * S, DUSK))
    hand.open_window(2)
    hand.give(203 * S, shown(203 * S, DAY, window=2))
    assert hand.stream().picture == DUSK
    assert hand.stream().scene.picture == DAY, "that is what is learnt"


def test_offered_kept_model_serves_instead_of_retrained_weights():
    hand = keeping()
    hand.give(120 * S, swapped(120 * S, 1))
    (command,) = only(cmd.AdoptModel, hand.give(132 * S, offered(132 * S, 7)))
    assert (command.of, command.version, command.kept) == (OLD.stream, OLD.version, 7)
    assert "kept weights get 90.0% right and those that serve 50.0%" in command.reason
    assert only(cmd.AdoptModel, hand.give(133 * S, offered(133 * S, 7, 0.5, 0.5))) == []


def test_offer_for_labels_of_the_window_before_or_to_an_ended_camera_is_ignored():
    hand = keeping()
    assert only(cmd.AdoptModel, hand.give(132 * S, offered(132 * S, 7, window=0))) == []
    hand.give(133 * S, ev.StreamEnded(133 * S, A))
    assert only(cmd.AdoptModel, hand.give(134 * S, offered(134 * S, 7))) == []


def test_offered_kept_model_waits_for_no_retraining():
    hand = retraining(options=KEEPS)
    assert only(cmd.AdoptModel, hand.give(115 * S, offered(115 * S, 7))) == []


def test_without_a_zoo_nothing_is_kept():
    hand = started(options=replace(KEEPS, zoo=0))
    hand.wishes[A] = Wish()
    hand.give(5 * S, shown(5 * S, DAY, window=0))
    assert only(cmd.KeepModel, hand.give(20 * S, swapped(20 * S, 1))) == []
    assert hand.state.fleet.zoo == ()


def test_weights_of_unknown_labels_are_not_kept():
    hand = opened_1(options=KEEPS)
    assert only(cmd.KeepModel, hand.give(120 * S, swapped(120 * S, 1))) == []


def test_weights_rolled_back_to_are_no_kept_ones():
    hand = keeping()
    hand.give(120 * S, swapped(120 * S, 1))
    hand.give(125 * S, ev.RolledBack(125 * S, A, ModelVersion(2), BASE_VERSION, 0))
    assert hand.stream().kept is None


def adopting():
    """Stream ``a`` was labelled again, and is about to serve the kept model."""
    hand = keeping()
    known = replace(labels(131 * S, A, accuracy=0.5), since_us=130 * S, accuracy_on_all=0.4)
    hand.give(131 * S, known)
    assert hand.stream().labels.accuracy_on_all == 0.4
    assert only(cmd.AdoptModel, hand.give(132 * S, offered(132 * S, 7)))
    assert hand.stream().accuracy == 0.77, "the next plan must know it"
    assert hand.stream().labels.accuracy_on_all == 0.9, "as is expected with what was known"
    assert hand.stream().version == 0
    return hand


@pytest.mark.parametrize(
    "fails", [ev.WorkerDied(134 * S, A, ev.Role.INFERENCE, "killed"), ev.AdoptionFailed(134 * S, A)]
)
def test_step_knows_the_serving_model_again_where_adopted_weights_never_serve(fails):
    hand = adopting()
    hand.give(133 * S, ev.ProfileReady(133 * S, A, 1, FamilyCurve(16, 0, 1, 64, (0.4, 0.5), 1.0, 0.5), 0.1))
    hand.give(134 * S, fails)
    assert hand.stream().accuracy == 0.5
    assert hand.stream().labels.accuracy_on_all is None, "that was of the adopted weights"
    assert hand.stream().profiles.curves == (), "they are of the adopted weights"


def test_step_keeps_adopted_accuracy_where_inference_dies_later():
    hand = adopting()
    hand.give(133 * S, ev.ModelAdopted(133 * S, A, ModelVersion(1), OLD.stream, OLD.version, 0.77, 0, 7))
    assert (hand.stream().version, hand.stream().accuracy) == (1, 0.77)
    for late in (ev.WorkerDied(134 * S, A, ev.Role.INFERENCE, "killed"), ev.AdoptionFailed(135 * S, A)):
        hand.give(late.t_us, late)
        assert hand.stream().accuracy == 0.77
