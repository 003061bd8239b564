from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.errors import UserError
from ekya.streams.ingest.credentials import (
    fill_in_url,
    fill_in_variables,
    find_variables,
    has_password,
    mask_passwords,
    replace_passwords,
)

SECRETS = [
    ("rtsp://admin:tops3cret@10.0.0.5:554/live/main", "rtsp://${X_LOGIN}@10.0.0.5:554/live/main"),
    ("rtsp://tops3cret@10.0.0.5/live", "rtsp://${X_LOGIN}@10.0.0.5/live"),
    ("rtsp://admin:t@p/tops3cret@10.0.0.5/live", "rtsp://${X_LOGIN}@10.0.0.5/live"),
    ("http://10.0.0.5/video.cgi?user=admin&pwd=tops3cret", "http://10.0.0.5/${X_PATH}"),
    ("rtsp://10.0.0.5/user=admin_password=tops3cret_channel=1.sdp", "rtsp://10.0.0.5/${X_PATH}"),
    ("http://a:tops3cret@cam/mjpg?token=tops3cret", "http://${X_LOGIN}@cam/${X_PATH}"),
]
HARMLESS = [
    "rtsp://10.0.0.5/live?channel=2",
    "rtsp://${CAM_USER}:${CAM_PASSWORD}@10.0.0.5/live",
    "rtsp://admin:${CAM_PASSWORD}@10.0.0.5/live",
    "http://10.0.0.5/video?pwd=${CAM_PASSWORD}",
    "/dev/video0",
    "${CAMERA}",
]


@pytest.mark.parametrize(("url", "named"), SECRETS)
def test_without_passwords_moves_password_to_variables(url, named, monkeypatch):
    assert has_password(url)
    written, values = replace_passwords(url, "X")
    assert written == named
    assert not has_password(written)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert fill_in_url(written) == url
    assert "tops3cret" not in mask_passwords(f"cannot open '{url}': no route to tops3cret", written)


@pytest.mark.parametrize("url", HARMLESS)
def test_without_passwords_plain_url_is_unchanged(url):
    assert not has_password(url)
    assert replace_passwords(url, "X") == (url, {})


@pytest.mark.parametrize("password", ["50%25 off", "100%", "a:b@c/d?e#f&g", "größer"])
def test_values_of_user_and_password_are_taken_as_they_are(password, monkeypatch):
    monkeypatch.setenv("CAM_USER", "me@home")
    monkeypatch.setenv("CAM_PASSWORD", password)
    url = "rtsp://${CAM_USER}:${CAM_PASSWORD}@10.0.0.5/live"
    parts = urlsplit(fill_in_url(url))
    assert (unquote(parts.username), unquote(parts.password), parts.hostname) == (
        "me@home",
        password,
        "10.0.0.5",
    )
    assert parts.password not in mask_passwords(f"cannot open {fill_in_url(url)[7:]}", url)


def test_values_in_a_path_and_whole_logins_are_as_they_stand_in_a_url(monkeypatch):
    monkeypatch.setenv("X", "user:tops%2Fecret")
    assert fill_in_url("rtsp://${X}@10.0.0.5/${X}") == "rtsp://user:tops%2Fecret@10.0.0.5/user:tops%2Fecret"


def test_filled_in_unset_variable_is_named(monkeypatch):
    monkeypatch.setenv("CAM_USER", "admin")
    monkeypatch.delenv("CAM_PASSWORD", raising=False)
    with pytest.raises(UserError, match="CAM_PASSWORD is not set; set it"):
        fill_in_variables("rtsp://${CAM_USER}:${CAM_PASSWORD}@10.0.0.5/live")


def test_masked_hides_every_form_of_a_value(monkeypatch):
    monkeypatch.setenv("LOGIN", "ad%40min:tops%2Fecret")
    for text in ("ad%40min:tops%2Fecret", "tops%2Fecret", "tops/ecret", "user ad@min"):
        shown = mask_passwords(f"cannot open {text}!", "rtsp://${LOGIN}@10.0.0.5/")
        assert "***" in shown
        assert not any(secret in shown for secret in ("tops", "min"))


def test_masked_without_variables_hides_logins_only():
    text = "10.0.0.5 and rtsp://admin:x@cam-1/live, 'http://cam-2/video', me@example.org"
    assert mask_passwords(text) == "10.0.0.5 and rtsp://***@cam-1/live, 'http://cam-2/video', me@example.org"
    assert mask_passwords("rtsp:/admin:x@cam-1/live is no file") == "rtsp:/***@cam-1/live is no file"


PIECE = st.text("aZ0-_.%", min_size=1, max_size=6)


@given(user=PIECE, password=st.text("aZ09/@:?%", min_size=1, max_size=8), path=PIECE)
def test_without_passwords_any_url_keeps_no_password(user, password, path):
    secret = f"q{password}q"
    url = f"rtsp://{user}:{secret}@cam/{path}"
    written, values = replace_passwords(url, "X")
    assert secret not in written
    for name in find_variables(written):
        written = written.replace(f"${{{name}}}", values[name])
    assert written == url
    assert secret not in mask_passwords(f"cannot open {url}")
