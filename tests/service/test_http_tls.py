"""TLS of the service's own: who reaches it by https, and what a certificate is refused for."""

import subprocess
from urllib.request import urlopen

import pytest
from certificates import make_certificate
from fake_service import TOKEN, FakeService
from http_asking import FREE_PORT, serving
from pydantic import ValidationError

from ekya.config.fleet_sections import HttpConfig
from ekya.core.errors import UserError
from ekya.service.http.client import ServiceClient
from ekya.service.http.place import read_place
from ekya.service.http.server import HttpServer


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    certificate, key = make_certificate(tmp_path_factory.mktemp("tls"))
    return {"certificate": certificate, "key": key}


def client_of(folder):
    return ServiceClient("city", read_place(folder), TOKEN)


def test_ctl_reaches_a_service_by_its_own_certificate(tmp_path, files):
    with serving(FakeService(), tmp_path, **files) as ask:
        assert ask.url.startswith("https://127.0.0.1:")
        assert client_of(tmp_path).get_json("status")["name"] == "city-east"


def test_a_service_with_a_certificate_answers_no_http(tmp_path, files):
    with (
        serving(FakeService(), tmp_path, **files) as ask,
        pytest.raises(OSError, match=r"closed|reset|Remote"),
    ):
        urlopen(ask.url.replace("https", "http"))


def test_ctl_trusts_no_other_certificate(tmp_path, files):
    (tmp_path / "other").mkdir()
    other, _ = make_certificate(tmp_path / "other")
    with serving(FakeService(), tmp_path, **files):
        place = (tmp_path / "service.json").read_text()
        (tmp_path / "service.json").write_text(place.replace(str(files["certificate"]), str(other)))
        with pytest.raises(UserError, match="CERTIFICATE_VERIFY_FAILED"):
            client_of(tmp_path).get_json("status")


def test_a_certificate_of_no_use_is_an_error_of_the_user(tmp_path, files):
    (tmp_path / "other").mkdir()
    _, other = make_certificate(tmp_path / "other")
    locked = tmp_path / "locked.pem"
    unlock = ["openssl", "ec", "-in", files["key"], "-aes256", "-passout", "pass:secret", "-out", locked]
    subprocess.run(unlock, check=True, capture_output=True)
    for key in (other, locked, None):
        config = FREE_PORT.model_copy(update={"certificate": files["certificate"], "key": key})
        with pytest.raises(UserError, match=r"http.certificate, http.key: .*must be PEM and belong together"):
            HttpServer(FakeService(), tmp_path, TOKEN, config)


def test_a_key_without_a_certificate_is_refused(files):
    with pytest.raises(ValidationError, match="key is of no use without certificate"):
        HttpConfig(key=files["key"])
