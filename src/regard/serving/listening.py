"""From a port to a server: on this machine alone unless asked otherwise, and gone with Ctrl-C."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from regard.errors import Interrupted, ResourceError, UsageError


def listen(host: str, port: int) -> socket.socket:
    """Take a port.

    Args:
        host: An address of this machine, or ``localhost``.
        port: The port; 0 is any free one.

    Returns:
        A socket that listens.

    Raises:
        UsageError: No port number, or no address of this machine.
        ResourceError: The port is taken, or not allowed.
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"port {port}", where="--port", mend="it is 0 to 65535; 0 is any free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, protocol)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        taken.listen(64)
    except socket.gaierror as error:
        raise UsageError("no address", where=f"--host {host}", mend="give an address of this machine") from error
    except OSError as error:
        where = f"{host}:{port}"
        raise ResourceError(error.strerror or "cannot listen", where=where, mend="give another --port") from error
    return taken


def is_loopback(host: str) -> bool:
    """Say whether only this machine can ask under an address.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names(host: str, port: int, also: list[str]) -> frozenset[str]:
    """List what a server may be asked under: a request under another name is refused.

    Args:
        host: The address it listens on.
        port: Its port.
        also: Further names.

    Returns:
        Names with the port.
    """
    own = ["localhost", "127.0.0.1", "[::1]"] if is_loopback(host) else [socket.gethostname(), "localhost"]
    shown = f"[{host}]" if ":" in host else host
    return frozenset(f"{name.lower()}:{port}" for name in [shown, *own, *also])


def new_token() -> str:
    """Draw a token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def serve(app: ASGIApp, taken: socket.socket, told: Callable[[], None], open_at: str | None = None) -> None:
    """Answer requests until a signal says that it is enough.

    Args:
        app: What answers.
        taken: The socket.
        told: Called once, when requests are answered.
        open_at: Address that a browser is opened at; None opens none.

    Raises:
        Interrupted: Ctrl-C, or SIGTERM.
    """
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=64,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=16 << 10,
        ws="none",
    )
    server = _Server(config, told, open_at)
    try:
        server.run([taken])
    finally:
        taken.close()
    if server.ended_by is not None:
        raise Interrupted("the page was closed", signal_number=server.ended_by)


class _Server(uvicorn.Server):
    """A server that says when it answers."""

    def __init__(self, config: uvicorn.Config, told: Callable[[], None], open_at: str | None) -> None:
        super().__init__(config)
        self._told, self._open_at = told, open_at
        self.ended_by: int | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Answer what is being answered, then end; a second signal does not wait."""
        self.force_exit = self.ended_by is not None
        self.ended_by, self.should_exit = sig, True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._told()
        if self._open_at is not None:  # a browser may take its time, and must not keep the page waiting
            threading.Thread(target=webbrowser.open, args=(self._open_at,), daemon=True).start()
