"""HTTP camera that serves JPEG pictures in one endless response (``multipart/x-mixed-replace``)."""

import base64
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import cv2
import numpy as np


class MjpegCamera:
    """Serves pictures of increasing brightness, from ``with`` until its end.

    ``stop`` and ``start`` unplug and replug the camera; ``login`` is required if it is set; while ``frozen``
    the connection stays open and no picture is sent.
    """

    def __init__(self, fps=20.0, login=None, size=(64, 48)):
        self.fps = fps
        self.login = login
        self.size = size
        self.frozen = False
        self.asked = []
        self._server = None
        self._port = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self._port}/video"

    def start(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), _handler(self))
        self._server.daemon_threads = True
        self._server.running = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        if self._server is not None:
            self._server.running = False
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()


def _handler(camera):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            camera.asked.append(self.path)
            server = self.server
            if camera.login is not None:
                expected = "Basic " + base64.b64encode(camera.login.encode()).decode()
                if self.headers.get("Authorization") != expected:
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="camera"')
                    self.end_headers()
                    return
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=picture")
            self.end_headers()
            number = 0
            while server.running:
                if not camera.frozen:
                    picture = np.full((camera.size[1], camera.size[0], 3), 8 * (number % 30), np.uint8)
                    coded = cv2.imencode(".jpg", picture)[1].tobytes()
                    head = f"--picture\r\nContent-Type: image/jpeg\r\nContent-Length: {len(coded)}\r\n\r\n"
                    try:
                        self.wfile.write(head.encode() + coded + b"\r\n")
                    except OSError:
                        return
                    number += 1
                time.sleep(1.0 / camera.fps)

        def log_message(self, *_):
            """Suppresses the access log."""

    return Handler
