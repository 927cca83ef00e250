"""Taking the port: one stated rule and one sentence for each way it can fail."""

from __future__ import annotations

import errno
import socket
import sys
from contextlib import suppress

from octavo.app.config import Settings
from octavo.engine.errors import OctavoError

DEFAULT_PORT = 7860
LAST_PORT = 7870


class PortError(OctavoError):
    """The address or port cannot be listened on."""


class AddressError(PortError):
    """server.host is nothing that this machine can listen on: the setting is at fault, not what runs here."""

    default_remedy = "Use 127.0.0.1, or an address of this machine."


def is_chosen(settings: Settings) -> bool:
    """Whether the user asked for this port: by flag, by environment, or in the file for another than the default."""
    source = settings.sources["server.port"]
    return source in {"flag", "environment"} or (source == "file" and settings.values.server.port != DEFAULT_PORT)


def listen(settings: Settings, preferred: int | None = None) -> socket.socket:
    """A listening socket. A port nobody chose gives way to the next free one up to 7870. Raises PortError.

    `preferred` goes before that where it is free: the port of the life before a restart.
    """
    host, port = settings.values.server.host, settings.values.server.port
    if preferred is not None:
        with suppress(PortError):
            return _listen(host, preferred)
    if is_chosen(settings) or port == 0:
        return _listen(host, port)
    for candidate in range(port, LAST_PORT + 1):
        try:
            return _listen(host, candidate)
        except PortTakenError:
            continue
    raise PortError(
        f"The ports {port} to {LAST_PORT} are all in use.",
        remedy="Close one of their users, or start with --port 0.",
    )


class PortTakenError(PortError):
    """Another program listens there."""

    def __init__(self, port: int) -> None:
        super().__init__(
            f"Port {port} is in use by another program.", remedy=f"Start with --port {_other(port)}, or close it."
        )


def page_url(host: str, port: int) -> str:
    """The address for a browser on this machine; numbers rather than names, which may mean IPv6."""
    if host in {"0.0.0.0", "localhost", ""}:
        host = "127.0.0.1"
    elif host in {"::", "[::]"}:
        host = "::1"
    host = host.strip("[]")
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        name = "127.0.0.1" if host == "localhost" else host.strip("[]")
        family, kind, protocol, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:  # the latter for a name that no encoding of names has
        raise AddressError(f"server.host {host!r} is neither an address nor a name that is known here.") from error
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform == "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Its connections have it from here: asyncio sets it only where a socket names its protocol, and not those that
        # are accepted on Windows. Without it a piece of a reply waits until the one before has been acknowledged.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _explain(error, host, port) from error
    listener.setblocking(False)
    return listener


def _explain(error: OSError, host: str, port: int) -> PortError:
    if error.errno == errno.EADDRINUSE:
        return PortTakenError(port)
    if error.errno in {errno.EACCES, errno.EPERM}:
        if port < 1024 and sys.platform != "win32":
            return PortError(
                f"Port {port} needs administrator rights, as all below 1024 do.",
                remedy=f"Start with --port {DEFAULT_PORT}.",
            )
        return PortError(
            f"The system does not allow listening on port {port}; it may be in a reserved range.",
            remedy=f"Start with --port {_other(port)}.",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return AddressError(f"server.host {host!r} is not an address of this machine.")
    return PortError(
        f"Octavo cannot listen on {host} port {port} ({error.strerror or error}).",
        remedy=f"Start with --port {_other(port)}, or set server.host to 127.0.0.1.",
    )


def _other(port: int) -> int:
    return port + 1 if 1024 <= port < 65535 else DEFAULT_PORT + 1
