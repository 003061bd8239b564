"""Downloads from a server of this machine: whole, cut off, resumed, damaged, and by two processes at once."""

import hashlib
import multiprocessing

import pytest
from local_server import served as serve

from ekya.core.errors import UserError
from ekya.system.download import PublishedFile, download_file

CONTENT = bytes(range(256)) * 4096
SHA256 = hashlib.sha256(CONTENT).hexdigest()
GIT_BLOB = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT, usedforsecurity=False).hexdigest()


def served(content=CONTENT, **how):
    return serve(content, **how)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("ekya.system.download.time.sleep", lambda _: None)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("checksum", [{"sha256": SHA256}, {"sha256": SHA256[:8]}, {"git_blob": GIT_BLOB}])
def test_a_file_is_downloaded_once_and_checked(tmp_path, checksum):
    path, told = tmp_path / "models" / "model.onnx", []
    with served() as (server, url):
        published = PublishedFile(url, **checksum)
        for _ in range(2):
            download_file(published, path, lambda done, of: told.append((done, of)))
        assert server.asked == [None]
    assert path.read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), len(CONTENT))


def test_a_download_that_is_cut_off_is_resumed_where_it_ended(tmp_path):
    path = tmp_path / "model.onnx"
    with served(cuts=[300_000, 200_000]) as (server, url):
        download_file(PublishedFile(url, sha256=SHA256), path)
        begins = [0 if one is None else int(one[6:-1]) for one in server.asked]
    assert len(begins) == 3
    assert 0 == begins[0] < begins[1] < begins[2]
    assert path.read_bytes() == CONTENT
    assert {one.name for one in tmp_path.iterdir()} == {"model.onnx", ".model.onnx.lock"}


def test_a_later_process_goes_on_with_the_part_of_an_earlier_one(tmp_path):
    path = tmp_path / "model.onnx"
    with served(cuts=[100_000] + [0] * 20) as (_, url), pytest.raises(UserError):
        download_file(PublishedFile(url, sha256=SHA256), path)
    assert not path.exists()
    with served() as (server, url):
        download_file(PublishedFile(url, sha256=SHA256), path)
        (asked,) = server.asked
    assert asked is not None
    assert path.read_bytes() == CONTENT


def test_a_server_that_resumes_nothing_sends_all_again(tmp_path):
    path = tmp_path / "model.onnx"
    with served(cuts=[100_000], resumes=False) as (_, url):
        download_file(PublishedFile(url, sha256=SHA256), path)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("part", [b"damaged", CONTENT + b"longer", b"x" * len(CONTENT)])
def test_a_damaged_part_is_fetched_again(tmp_path, part):
    path = tmp_path / "model.onnx"
    (tmp_path / ".model.onnx.part").write_bytes(part)
    with served() as (_, url):
        download_file(PublishedFile(url, sha256=SHA256), path)
    assert path.read_bytes() == CONTENT


def test_a_file_that_is_damaged_in_its_place_is_fetched_again(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(CONTENT[:-1])
    with served() as (_, url):
        download_file(PublishedFile(url, sha256=SHA256), path)
    assert path.read_bytes() == CONTENT


def test_other_content_is_refused_and_not_kept(tmp_path):
    path = tmp_path / "model.onnx"
    with (
        served(CONTENT[::-1]) as (_, url),
        pytest.raises(UserError, match=f"{SHA256} and was not kept"),
    ):
        download_file(PublishedFile(url, sha256=SHA256), path)
    assert [one.name for one in tmp_path.iterdir()] == [".model.onnx.lock"]


@pytest.mark.parametrize(("status", "times"), [(404, 1), (403, 1), (503, 5)])
def test_a_refusal_is_told_and_a_failing_server_is_asked_again(tmp_path, status, times):
    with served(refuses=status) as (server, url):
        with pytest.raises(UserError, match=str(status)):
            download_file(PublishedFile(url, sha256=SHA256), tmp_path / "model.onnx")
        assert len(server.asked) == times


def test_without_a_server_or_a_name_it_is_told_at_once(tmp_path):
    with served() as (_, url):
        pass
    for gone in (url, "http://no-such-host.invalid/model.onnx"):
        with pytest.raises(UserError, match=r"not resolved|refused") as refused:
            download_file(PublishedFile(gone, sha256=SHA256), tmp_path / "model.onnx")
        assert "object at 0x" not in str(refused.value)


def fetch(url, path):
    download_file(PublishedFile(url, sha256=SHA256), path)


def test_two_processes_at_once_fetch_it_once(tmp_path):
    path = tmp_path / "model.onnx"
    with served() as (server, url):
        started = [multiprocessing.get_context("spawn").Process(target=fetch, args=(url, path)) for _ in "12"]
        for one in started:
            one.start()
        for one in started:
            one.join()
        assert [one.exitcode for one in started] == [0, 0]
        assert server.asked == [None]
    assert path.read_bytes() == CONTENT
