"""Tokens and certificates that brokers accept, and some that they refuse."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from interop.releases import CONF, Unavailable, run


class Certificates(NamedTuple):
    """PEM files. The server is `localhost` and 127.0.0.1, the client has the role `client`."""

    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority, and what it signs, in `folder`. Raises Unavailable."""

    def openssl(words: str) -> None:
        run("openssl", *words.split(), cwd=folder).check_returncode()

    if not shutil.which("openssl"):
        raise Unavailable("no openssl on PATH to make certificates with")
    shutil.copy(CONF / "openssl.cnf", folder)
    request = "req -config openssl.cnf -newkey rsa:2048 -nodes"
    openssl(f"{request} -x509 -extensions ca -days 3650 -subj /CN=pwire-tests -keyout ca.key -out ca.pem")
    for who in ("server", "client"):
        openssl(f"{request} -subj /CN={who} -keyout {who}.key -out {who}.csr")
        signing = f"-CA ca.pem -CAkey ca.key -CAcreateserial -extfile openssl.cnf -extensions {who}"
        openssl(f"x509 -req -in {who}.csr -days 3650 -out {who}.pem {signing}")
    names = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
    return Certificates(*(folder / name for name in names))
