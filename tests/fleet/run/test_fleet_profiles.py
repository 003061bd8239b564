"""Job profiles on disk."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.errors import UserError
from ekya.fleet.papers.andreas.workload import FAMILIES, profile_name
from ekya.fleet.workload_files import load_profiles

names = st.text("abV1", min_size=1, max_size=3)
some = st.dictionaries(
    names,
    st.dictionaries(st.tuples(names, st.integers(1, 8)), st.integers(1, 10**10), min_size=1, max_size=3),
    max_size=3,
)


def write(path, profiles) -> None:
    kinds = {
        name: {kind: {str(gpus): us / 1e6 for (of, gpus), us in one.items() if of == kind} for kind, _ in one}
        for name, one in profiles.items()
    }
    path.write_text(json.dumps({"profiles": kinds}))


@settings(max_examples=15)
@given(some)
def test_what_a_file_says_is_loaded(tmp_path_factory, profiles) -> None:
    path = tmp_path_factory.mktemp("profiles") / "profiles.json"
    write(path, profiles)
    assert load_profiles(path) == profiles


def test_the_papers_families_fit_in(tmp_path) -> None:
    path = tmp_path / "profiles.json"
    every = {profile_name(one, batch): one.epoch_us(batch) for one in FAMILIES for batch in one.batches}
    write(path, every)
    assert load_profiles(path) == every
    assert every["LSTM-32"]["V100", 1] == 75_000_000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is no JSON that can be read"),
        ('{"profiles": {}, "profiles": {}}', "the key 'profiles' stands there twice"),
        ("[]", "holds no object"),
        ("{}", "profiles: this key is missing; add it"),
        ('{"profiles": {}, "profile": {}}', "did you mean profiles?"),
        ('{"profiles": {"a": {"V100": {"1": 0}}}}', "profiles.a.V100.1: 0 is too small; use more than 0"),
        (
            '{"profiles": {"a": {"V100": {"1": "fast"}}}}',
            "profiles.a.V100.1: 'fast' is not possible; write a number",
        ),
        ('{"profiles": {"a": {"V100": {"0": 5}}}}', "profiles.a.V100.0"),
    ],
)
def test_what_does_not_fit_is_one_sentence_with_file_and_key(tmp_path, content, said) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        load_profiles(path)
    assert str(path) in str(error.value)
    assert said in str(error.value)


def test_a_missing_file_says_what_to_do(tmp_path) -> None:
    with pytest.raises(UserError, match=r"profiles\.json: there is no such file; check the path"):
        load_profiles(tmp_path / "profiles.json")
