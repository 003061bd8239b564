"""Streams that refer to something else: from the network to no file, from a file to no network."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import cv2
import numpy as np
import pytest

from ekya.core.errors import UserError
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.frame import Sight, Silence
from ekya.streams.ingest.video import VideoSpec

PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\n{}\n#EXT-X-ENDLIST\n"


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "inside.ts"
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*"mp4v"), 10, (64, 64))
    for frame in range(20):
        writer.write(np.full((64, 64, 3), 8 * frame, np.uint8))
    writer.release()
    return path


@pytest.fixture
def web(video):
    """Serves what ``said`` has for a path, a redirection where it begins with "to", and else ``video``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.asked.append(self.path)
            said = server.said.get(self.path)
            if said is not None and said.startswith("to "):
                self.send_response(302)
                self.send_header("Location", said.removeprefix("to "))
                content = b""
            else:
                self.send_response(200)
                content = video.read_bytes() if said is None else said.encode()
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.said, server.asked = {}, []
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def first_of(url):
    source = CameraSpec(url=url, fps=10).open(())
    try:
        return next(iter(source.watch_pictures()))
    finally:
        source.close()


def test_camera_reaches_the_network_and_no_file(web, video):
    web.said = {
        "/file.m3u8": PLAYLIST.format(f"file://{video}"),
        "/concat": f"ffconcat version 1.0\nfile {video}\n",
        "/moved": f"to file://{video}",
        "/other.m3u8": PLAYLIST.format(f"{web.url}/inside.ts"),
    }
    for path in ("/file.m3u8", "/concat", "/moved"):
        seen = first_of(web.url + path)
        assert isinstance(seen, Silence)
        assert "gives no video" in seen.reason
    assert isinstance(first_of(f"{web.url}/other.m3u8"), Sight)


def test_video_file_reaches_no_network(web, video):
    list_of_web, concat = video.with_name("list.m3u8"), video.with_name("concat.mp4")
    list_of_web.write_text(PLAYLIST.format(f"{web.url}/inside.ts"))
    concat.write_text(f"ffconcat version 1.0\nfile {web.url}/inside.ts\n")
    for path in (list_of_web, concat):
        with pytest.raises(UserError):
            VideoSpec(files=(path,)).open(())
    assert web.asked == []
