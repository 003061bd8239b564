"""Laws that every registered scheduler keeps."""

import copy
import re
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from optimum.bound import upper_bound
from optimum.pareto import uniform_baselines, uniform_word
from views import GAMMAS, window_views

from ekya.core.errors import UserError
from ekya.planning.schedulers import registry
from ekya.planning.schedulers.allocation import kept_floors
from ekya.planning.schedulers.baselines import FixedConfig, Uniform
from ekya.planning.schedulers.cloud_and_reuse import LinkOrder, Network
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.pick import pick_inference
from ekya.planning.schedulers.registry import PRESETS, SCHEDULERS, make_scheduler, preset_of, scheduler_word
from ekya.planning.schedulers.scheduler import gamma_word

ALL = sorted(SCHEDULERS)
SHARING = [name for name in ALL if not make_scheduler(name).needs.fixed_shares]
"""All but the static baselines, whose fixed shares keep a_MIN only by chance."""

HERE = [name for name in ALL if not make_scheduler(name).needs.elsewhere]
"""All but those that use GPUs elsewhere."""

few = settings(max_examples=25)
some = settings(max_examples=15)

ROUGH = {"intervals": 4, "rounds": 20}


def each(names):
    """Yields schedulers for one example, which is not drawn again for each; a failure tells which it was."""
    for name in names:
        note(name)
        yield make_scheduler(name)


@st.composite
def moments(draw):
    """A view, in some cases with a plan in progress."""
    view = draw(window_views())
    name = draw(st.sampled_from(["thief", "exact", None]))
    return replace(view, previous=make_scheduler(name).plan(view).phases) if name else view


@few
@given(view=moments())
def test_plan_shares_are_quanta_within_capacity(view):
    for scheduler in each(ALL):
        for phase in scheduler.plan(view).phases:
            shares = [
                share for a in phase.assignments for share in (a.retrain_share_milli, a.inference_share_milli)
            ]
            assert sum(shares) <= view.capacity_milli
            assert all(0 <= share <= 1000 and share % view.quantum_milli == 0 for share in shares)
            assert all(a.retrain_share_milli == 0 for a in phase.assignments if a.retrain is None)


@few
@given(view=moments())
def test_plan_assigns_each_stream_an_offered_option(view):
    for scheduler in each(ALL):
        for index, phase in enumerate(scheduler.plan(view).phases):
            assert [a.stream for a in phase.assignments] == [s.stream for s in view.streams]
            for assigned, stream in zip(phase.assignments, view.streams, strict=True):
                assert assigned.inference in [o.config for o in stream.inference_options]
                assert assigned.reason
                assert "\n" not in assigned.reason
                if stream.running:
                    completed = index > 0 and assigned.retrain is None
                    assert completed or assigned.retrain == stream.running.option.config
                elif assigned.retrain is not None:
                    assert assigned.retrain in [o.config for o in stream.retrain_options]


@some
@given(view=moments())
def test_plan_with_options_reversed_stays_the_same(view):
    for scheduler in each(ALL):
        plan = scheduler.plan(view)
        streams = tuple(
            replace(
                stream,
                retrain_options=tuple(reversed(stream.retrain_options)),
                inference_options=tuple(reversed(stream.inference_options)),
            )
            for stream in view.streams
        )
        assert scheduler.plan(replace(view, streams=streams)).phases == plan.phases


@some
@given(view=moments(), other=moments())
def test_plan_twice_is_equal_and_view_unchanged(view, other):
    before = copy.deepcopy(view)
    for scheduler in each(ALL):
        plan = scheduler.plan(view)
        assert view == before
        scheduler.plan(other)
        assert scheduler.plan(view) == plan


@few
@given(view=moments())
def test_plan_expects_its_objective(view):
    for scheduler in each(ALL):
        plan = scheduler.plan(view)
        assert plan.expected_accuracy == evaluate_phases(view, plan.phases).score


@few
@given(view=moments())
def test_plan_completes_what_it_begins(view):
    """At most one γ per stream; a running one goes on even if it will not be done, as the cloud's does.

    A γ that will not be done must bring something before, by its checkpoints.
    """
    for scheduler in each(ALL):
        plan = scheduler.plan(view)
        done = dict(evaluate_phases(view, plan.phases).completions_us)
        assert all(view.now_us <= t_us <= view.window_end_us for t_us in done.values())
        for place, stream in enumerate(view.streams):
            named = {phase.assignments[place].retrain for phase in plan.phases}
            gammas = named - {None}
            assert len(gammas) <= 1
            assert not stream.running or None not in named or stream.stream in done
            sent = plan.phases[0].assignments[place].elsewhere
            rising = {option.config for option in stream.retrain_options if option.early_part > 0.0}
            assert stream.running or sent or stream.stream in done or gammas <= rising


@some
@given(view=moments())
def test_plan_scores_at_most_upper_bound(view):
    bound = upper_bound(view, **ROUGH)
    for scheduler in each(HERE):
        assert scheduler.plan(view).expected_accuracy <= bound + 1e-9


@few
@given(view=moments())
def test_plan_keeps_minimum_for_most_streams(view):
    possible = len(kept_floors(view, usable_milli(view)))
    for scheduler in each(SHARING):
        for phase in scheduler.plan(view).phases[:1]:
            kept = [
                (got.too_old, got.below_min) == broken_at_a_whole_gpu(view, stream)
                for stream, got in zip(view.streams, phase.assignments, strict=True)
            ]
            assert sum(kept) >= possible


@some
@given(view=moments())
def test_plan_scores_at_most_bound_with_minimum(view):
    bound = upper_bound(view, keep_minimum=True, **ROUGH)
    for scheduler in each(SHARING):
        assert scheduler.plan(view).expected_accuracy <= bound + 1e-9


def broken_at_a_whole_gpu(view, stream):
    """Returns which of the latency limit and a_MIN breaks even then; the latency limit has priority."""
    whole = pick_inference(view, stream, 1000 // view.quantum_milli * view.quantum_milli)
    return whole.too_old, whole.below_min


def usable_milli(view):
    """Returns the share that the jobs can hold together: whole quanta, and at most one GPU per job."""
    jobs = sum(1 + bool(s.running or s.retrain_options) for s in view.streams)
    each = 1000 // view.quantum_milli * view.quantum_milli
    return min(view.capacity_milli // view.quantum_milli * view.quantum_milli, jobs * each)


def test_make_scheduler_unknown_name_lists_known():
    with pytest.raises(UserError, match="scheduler: there is no 'theif'; choose one of") as raised:
        make_scheduler("theif")
    assert all(name in str(raised.value) for name in SCHEDULERS)


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_name_alone_gives_defaults(name):
    assert make_scheduler(name).name == name


def test_options_after_name_are_read():
    assert make_scheduler("uniform:inference=300") == Uniform(300)
    assert make_scheduler("fixed-config:gamma=8/16/0/1/0.5:inference=900").inference_part_milli == 900


def test_preset_alone_is_its_own_scheduler():
    assert make_scheduler("paper") == make_scheduler("thief")


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_scheduler_under_preset_is_the_same_scheduler(name, preset):
    assert make_scheduler(f"{name}@{preset}") == make_scheduler(name)
    assert preset_of(f"{name}@{preset}") == preset_of(preset) == PRESETS[preset]
    assert preset_of(name) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mine", None),
        ("mine@paper", None),
        ("mine:a=1", "mine takes no options; write mine alone"),
        ("gone", "gone of nowhere:at_all cannot be loaded (ModuleNotFoundError: No module named 'nowhere')"),
        ("other", "there is no 'other'; choose one of .*, mine, "),
    ],
)
def test_scheduler_of_another_package_is_found_by_its_entry_point(text, says, monkeypatch):
    points = {"mine": "ekya.planning.schedulers.ekya:Ekya", "gone": "nowhere:at_all"}
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [EntryPoint(*one, group) for one in points.items()]
    )
    if says is None:
        assert make_scheduler(text) == make_scheduler("ekya")
        return
    with pytest.raises(UserError, match=says if ".*" in says else re.escape(says)):
        make_scheduler(text)


def test_scheduler_that_is_an_object_stays_itself_and_has_no_preset():
    given = Uniform(300)
    assert make_scheduler(given) is given
    assert (scheduler_word(given), scheduler_word("uniform:inference=300")) == (
        "uniform",
        "uniform:inference=300",
    )


def test_options_before_preset_are_read():
    assert make_scheduler("uniform:inference=300@paper") == Uniform(300)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_gamma_word_is_read_back(gamma):
    assert make_scheduler(f"fixed-config:gamma={gamma_word(gamma)}") == FixedConfig(500, gamma)


@pytest.mark.parametrize("uniform", uniform_baselines(GAMMAS[0], GAMMAS[3]))
def test_uniform_word_is_read_back(uniform):
    assert make_scheduler(uniform_word(uniform)) == uniform
    assert make_scheduler(uniform_word(replace(uniform, fixed_gamma=None))).fixed_gamma is None


def test_gamma_outside_offer_raises():
    word = f"uniform:gamma={gamma_word(GAMMAS[1])}"
    assert make_scheduler(word, offered=GAMMAS[:2]).fixed_gamma == GAMMAS[1]
    with pytest.raises(UserError, match=f"choose one of {gamma_word(GAMMAS[0])}$"):
        make_scheduler(word, offered=GAMMAS[:1])


def test_cloud_options_set_network():
    assert make_scheduler("cloud:up=8.5:down=15:order=shared").network == Network(8.5, 15.0, LinkOrder.SHARED)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("uniform:part=3", "uniform has no option 'part'; it takes inference=THOUSANDTHS, gamma=EPOCHS/"),
        ("thief:inference=300", "thief has no option 'inference'; write thief alone"),
        ("uniform:", "uniform has no option ''; it takes"),
        ("uniform:inference=half", "'half' is no value for inference; write inference=THOUSANDTHS"),
        ("uniform:inference", "'' is no value for inference"),
        ("uniform:inference=3:inference=4", "inference stands twice in 'uniform:inference=3:inference=4'"),
        ("uniform:inference=1001", "an inference part of 1001 thousandths is out of range; choose 0 to 1000"),
        (
            "uniform:gamma=8/16/0/1",
            "'8/16/0/1' is no value for gamma; write gamma=EPOCHS/BATCH/HEAD/BLOCKS/DATA",
        ),
        ("uniform:gamma=0/16/0/1/0.5", "'0/16/0/1/0.5' is no value for gamma"),
        ("uniform:gamma=8/16/-1/1/0.5", "is no value for gamma"),
        ("uniform:gamma=8/16/0/1/nan", "is no value for gamma"),
        ("cloud:up=0", "'0' is no value for up; write up=MBPS"),
        ("cloud:down=inf", "'inf' is no value for down"),
        ("cloud:order=mine", "'mine' is no value for order; write order=in-turn|shared"),
        ("UNIFORM", "there is no 'UNIFORM'"),
        ("thief@papers", "there is no preset 'papers'; choose one of paper"),
        ("thief@paper@paper", "there is no preset 'paper@paper'"),
        ("thief@", "there is no preset ''"),
        ("@paper", "there is no ''"),
        ("paper:inference=300", "paper is a preset and has no options; write paper alone"),
        ("paper@paper", "paper is a preset and has no options; write paper alone"),
    ],
)
def test_unreadable_spec_raises_user_error(text, says):
    with pytest.raises(UserError) as raised:
        make_scheduler(text)
    assert str(raised.value).startswith("scheduler: ")
    assert says in str(raised.value)
