from dataclasses import replace

import pytest
from optimum.pareto import uniform_baselines, uniform_word
from views import GAMMAS

from ekya.core.errors import UserError
from ekya.planning.schedulers.baselines import FixedConfig, Uniform
from ekya.planning.schedulers.cloud import LinkOrder, Network
from ekya.planning.schedulers.options import gamma_word
from ekya.planning.schedulers.presets import PRESETS, preset_of
from ekya.planning.schedulers.registry import SCHEDULERS, make_scheduler


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
