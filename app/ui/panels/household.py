"""Opening Octavo to the other devices of the household, and closing it again."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
from typing import Any

import psutil
from fastapi import FastAPI, Request

from octavo.app.api.body import read_body
from octavo.app.api.errors import ApiError
from octavo.app.config import ConfigError, save
from octavo.app.guards import is_loopback_name
from octavo.app.ports import page_url
from octavo.app.ui.panels.deps import PanelDeps
from octavo.app.ui.panels.local import is_here, not_from_here
from octavo.app.ui.panels.pending import describe

PATH = "/api/ui/household"
ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # nothing that can be mistaken for another letter
GROUPS, GROUP = 4, 4  # 79 bits: with the waits of the door, nobody guesses that
EVERYWHERE = "0.0.0.0"
HERE = "127.0.0.1"
NOT_A_HOUSE = ("docker", "br-", "veth", "virbr", "vmnet", "vboxnet")  # networks of the machine with itself


def add_routes(app: FastAPI, deps: PanelDeps) -> None:
    started_with = deps.settings.values.server

    @app.get(PATH)
    def show(request: Request) -> dict[str, Any]:
        server = deps.settings.values.server
        port = request.scope.get("server", (None, server.port))[1]
        return {
            "open": not is_loopback_name(server.host),
            "in_force": server.host == started_with.host and server.api_key == started_with.api_key,
            "has_key": server.api_key is not None,
            "fixed_by": _fixed_by(deps, "server.host"),
            "key_fixed_by": _fixed_by(deps, "server.api_key"),
            "addresses": [page_url(address, port) for address in addresses()],
            "local": is_here(request),
        }

    @app.post(PATH)
    async def change(request: Request) -> dict[str, Any]:
        if not is_here(request):
            raise not_from_here()
        body = await read_body(request)
        if body.flag("open"):
            return {"key": await asyncio.to_thread(_open, deps, body.flag("new_key"))}
        changes: dict[str, object] = {"server.host": HERE}
        if body.flag("drop_key"):  # else it stays: programs on this machine may be using it
            changes["server.api_key"] = None
        await asyncio.to_thread(_save, deps, changes)
        return {"key": None}


def _open(deps: PanelDeps, wants_new_key: bool) -> str | None:
    """Write address and, where there is none or a new one is wanted, a key; returns the new key, shown this once."""
    key = make_key() if wants_new_key or deps.settings.values.server.api_key is None else None
    changes: dict[str, object] = {} if key is None else {"server.api_key": key}
    if is_loopback_name(deps.settings.values.server.host):
        changes["server.host"] = EVERYWHERE
    if changes:
        _save(deps, changes)
    return key


def _save(deps: PanelDeps, changes: dict[str, object]) -> None:
    try:
        save(deps.settings.path, changes)
        deps.settings.refresh()
    except ConfigError as error:
        raise ApiError(400, describe(error) or str(error), code="invalid_setting") from error


def _fixed_by(deps: PanelDeps, key: str) -> str | None:
    """The flag or variable that says this before config.yaml does."""
    return deps.settings.places[key] if deps.settings.sources[key] in ("flag", "environment") else None


def make_key() -> str:
    """A key people can read to each other."""
    groups = ("".join(secrets.choice(ALPHABET) for _ in range(GROUP)) for _ in range(GROUPS))
    return "-".join(groups)


def addresses() -> list[str]:
    """This machine's addresses for the others in its network, private IPv4 ones first."""
    found: list[ipaddress.IPv4Address] = []
    for name, entries in psutil.net_if_addrs().items():
        if name.lower().startswith(NOT_A_HOUSE):
            continue
        found += [ipaddress.IPv4Address(entry.address) for entry in entries if entry.family == socket.AF_INET]
    usable = [address for address in found if not (address.is_loopback or address.is_link_local)]
    return [str(address) for address in sorted(usable, key=lambda address: (not address.is_private, address))]
