"""Certificates of a test's own authority, as files."""

import ssl
from pathlib import Path

import trustme


class Certificates:
    """Of an authority and a server named localhost; clients get theirs when they connect."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        server = folder / "server.pem"
        authorities = folder / "authorities.pem"
        made = self._authority.issue_cert("localhost")
        made.private_key_and_cert_chain_pem.write_to_path(server)
        self._authority.cert_pem.write_to_path(authorities)
        self.server = {"certificate": str(server), "key": str(server)}
        """Settings of the section ways_in."""
        self.authorities = {"client_authorities": str(authorities)}

    def client(self, *, has_certificate: bool) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self._authority.configure_trust(context)
        if has_certificate:
            self._authority.issue_cert("client").configure_cert(context)
        return context
