"""Tells whether a port speaks HTTP/2, as a gRPC server does."""

import socket

_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""Begin of an HTTP/2 connection, with empty settings, which a gRPC server answers with its own."""

_SETTINGS = 4
"""Type of a frame: its fourth byte."""


def speaks_http2(host: str, port: int, within_s: float) -> bool:
    """Returns whether a server answers a greeting.

    Raises:
        OSError: none listens there, or answers in time.
    """
    with socket.create_connection((host, port), within_s) as connection:
        connection.sendall(_GREETING)
        answer = connection.recv(_SETTINGS)
        return len(answer) == _SETTINGS and answer[-1] == _SETTINGS
