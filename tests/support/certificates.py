"""A certificate of one's own for the tests of TLS, made by OpenSSL."""

import shutil
import subprocess

import pytest


def make_certificate(folder, host="cameras.example"):
    """Makes certificate and key of a host, which is also 127.0.0.1, and returns their files."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    made = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host},IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", *made, *names, *files], check=True, capture_output=True)
    return certificate, key
