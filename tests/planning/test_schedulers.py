"""Laws that every registered scheduler keeps."""

import re
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
from hypothesis import given, note, settings
from optimum.bound import upper_bound
from optimum.pareto import uniform_baselines, uniform_word

from ekya.core.errors import UserError
from ekya.core.plug_ins import PlugInGroup
from ekya.planning.schedulers import registry
from ekya.planning.schedulers.allocation import kept_floors
from ekya.planning.schedulers.baselines import FixedConfig, Uniform
from ekya.planning.schedulers.cloud_and_reuse import LinkOrder, Network
from ekya.planning.schedulers.pick import pick_inference
from ekya.planning.schedulers.registry import PRESETS, SCHEDULERS, make_scheduler, preset_of, scheduler_word
from ekya.planning.schedulers.scheduler import gamma_word
from ekya.testing import GAMMAS, LAWS, moments

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


@pytest.mark.parametrize("law", LAWS)
def test_every_scheduler_keeps(law):
    @few
    @given(view=moments())
    def check(view):
        for scheduler in each(ALL):
            law(scheduler, view)

    check()


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
    found = {name: EntryPoint(name, value, PlugInGroup.SCHEDULERS) for name, value in points.items()}
    monkeypatch.setattr(registry, "find_plug_ins", {PlugInGroup.SCHEDULERS: found}.get)
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
