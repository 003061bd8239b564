"""A server of one file on this machine, which may cut connections, refuse, or not resume."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Served(BaseHTTPRequestHandler):
    """Serves ``content``; ends the connection after ``cuts`` bytes as often as the list says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        server.asked.append(self.headers.get("Range"))
        if server.refuses:
            self.send_error(server.refuses)
            return
        begin = 0
        if server.resumes and self.headers.get("Range"):
            begin = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        if begin >= len(server.content):
            self.send_error(416)
            return
        body = server.content[begin:]
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.cuts:
            self.wfile.write(body[: server.cuts.pop(0)])
            self.close_connection = True
            self.connection.close()
        else:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def served(content, *, cuts=(), resumes=True, refuses=None):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    server.content, server.cuts, server.resumes, server.refuses = content, list(cuts), resumes, refuses
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}/model.onnx"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
