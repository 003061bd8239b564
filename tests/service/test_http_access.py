"""Tokens, cookies, and the limit of wrong tokens."""

import pytest
from fake_service import TOKEN

from ekya.core.errors import UserError
from ekya.service.http.access import (
    FAILURES_ALLOWED,
    FAILURES_WITHIN_S,
    MOST_ADDRESSES,
    SESSION_S,
    FailureLimit,
    Keys,
    read_token,
    token_of,
)


def test_token_is_made_once_and_private(tmp_path):
    token = token_of(tmp_path)
    assert len(token) == 43
    assert token_of(tmp_path) == read_token(tmp_path) == token
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_token_file_without_a_token_is_refused(tmp_path):
    (tmp_path / "token").write_text("short")
    with pytest.raises(UserError, match=r"this is no token .*the next start makes one"):
        token_of(tmp_path)


def test_bearer_header_needs_the_whole_token():
    keys = Keys(TOKEN)
    assert keys.is_bearer(f"Bearer {TOKEN}")
    assert keys.is_bearer(f"bearer {TOKEN}")
    for header in (
        "",
        "Bearer",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        "Bearer \udcff",
    ):
        assert not keys.is_bearer(header)


def test_session_ends_after_its_time():
    now_s = [1e9]
    keys = Keys(TOKEN, lambda: now_s[0])
    cookie = keys.new_session()
    now_s[0] += SESSION_S - 1
    assert keys.is_session(cookie)
    now_s[0] += 2
    assert not keys.is_session(cookie)


def test_session_of_another_token_or_with_another_end_is_refused():
    keys = Keys(TOKEN)
    cookie = keys.new_session()
    ends, nonce, signature = cookie.split(".")
    assert keys.is_session(cookie)
    assert not Keys(TOKEN[::-1]).is_session(cookie)
    for forged in (
        "",
        "..",
        f"{int(ends) + 1}.{nonce}.{signature}",
        f"{ends}.{nonce}.",
        f"\udcff.{signature}",
    ):
        assert not keys.is_session(forged)
    assert keys.new_session() != cookie


def test_token_is_not_in_the_text_of_keys():
    assert TOKEN not in repr(Keys(TOKEN))


def test_address_with_too_many_failures_waits_and_others_do_not():
    now_s = [0.0]
    limit = FailureLimit(lambda: now_s[0])
    for _ in range(FAILURES_ALLOWED):
        assert limit.wait_s("a") == 0
        limit.count_failure("a")
        now_s[0] += 1
    assert limit.wait_s("a") == FAILURES_WITHIN_S - FAILURES_ALLOWED
    assert limit.wait_s("b") == 0
    now_s[0] += FAILURES_WITHIN_S - FAILURES_ALLOWED
    assert limit.wait_s("a") == 0
    limit.count_failure("a")
    assert limit.wait_s("a") > 0


def test_failures_of_many_addresses_stay_bounded():
    limit = FailureLimit()
    for number in range(3 * MOST_ADDRESSES):
        limit.count_failure(str(number))
    assert len(limit._failed_s) == MOST_ADDRESSES
