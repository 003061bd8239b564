"""YAML files that people write: a key that stands twice is refused with both lines."""

import pytest

from ekya.core.errors import UserError
from ekya.system.yaml_file import read_mapping


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        ("streams: [1]\nname: a\nstreams: [2]\n", "streams", "1 and 3"),
        ("a:\n  - {url: x,\n     id: 1, url: y}\n", "url", "2 and 3"),
        ("a: {b: {c: 1, c: 1}}\n", "c", "1 and 1"),
        ('{"a": 1,\n"a": 2}', "a", "1 and 2"),
    ],
)
def test_key_that_stands_twice_is_refused(tmp_path, text, key, lines):
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_mapping(path)
    assert f"{path}: lines {lines}: the key '{key}' stands there twice" in str(caught.value)


def test_merged_keys_may_be_replaced(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text("one: &one {a: 1, b: &b [x]}\ntwo: {<<: *one, <<: {c: 3}, a: 2}\nthree: *b\n")
    assert read_mapping(path)["two"] == {"a": 2, "b": ["x"], "c": 3}
