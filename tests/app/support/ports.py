"""A port for a process that must be told one."""

from __future__ import annotations

import random
import socket

# Below what any system gives to outgoing connections, so that none of those takes it before the process listens.
LOWEST, HIGHEST = 27_000, 32_000


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    while True:
        port = random.SystemRandom().randint(LOWEST, HIGHEST)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
