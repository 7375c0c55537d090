"""TLS contexts for servers and clients, and their renewal without a restart.

TLS 1.3 only; clients always check the chain and the host name. A server's renewed files serve new
handshakes; connections that stand keep what they began with.
"""

import ssl

import msgspec

from raftwood.base.errors import InvalidConfiguration


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files: the certificate chain and key of this side, and the authorities it trusts."""

    certificate: str | None = None
    key: str | None = None
    authorities: str | None = None


class ServerTls:
    """A context for a listening server; `reload` reads the files again.

    With authorities a client must show a certificate that they signed (mutual TLS).
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._current = self._load()
        self.context = self._load()
        self.context.sni_callback = self._choose

    def reload(self) -> None:
        """Loads the files as they are now; if they are broken, raises and keeps the old ones."""
        self._current = self._load()

    def _choose(self, handshake: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        # The listening socket keeps the first context; each handshake is moved to the newest.
        # This also takes an authority's trust away, which adding to a live context could not.
        handshake.context = self._current

    def _load(self) -> ssl.SSLContext:
        if self._files.certificate is None:
            raise InvalidConfiguration("a TLS server needs a certificate: set its file")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # A resumed session would skip the certificates, and so miss a reload.
        context.num_tickets = 0
        _load_chain(context, self._files)
        if self._files.authorities is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            _load_authorities(context, self._files.authorities)
        return context


class ClientTls:
    """Contexts for outgoing connections; `reload` reads the files again for new ones."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.context = self._load()

    def reload(self) -> None:
        """Loads the files as they are now; if they are broken, raises and keeps the old ones."""
        self.context = self._load()

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if self._files.authorities is None:
            context.load_default_certs()
        else:
            _load_authorities(context, self._files.authorities)
        if self._files.certificate is not None:
            _load_chain(context, self._files)
        return context


def _load_chain(context: ssl.SSLContext, files: TlsFiles) -> None:
    assert files.certificate is not None
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfiguration(
            f"the certificate {files.certificate} or its key cannot be used: {error}"
        ) from error


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfiguration(f"the authorities {path} cannot be used: {error}") from error
