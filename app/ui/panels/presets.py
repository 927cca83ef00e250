"""The presets panel: what the open chat has of its own (system text, sampling), and presets to take that from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool

from octavo.app.api.body import Body, read_body
from octavo.app.api.errors import ApiError
from octavo.app.chat.errors import UnknownChatError
from octavo.app.chat.sampling import CHAT_FIELDS, inherited, sampling_params
from octavo.app.chat.service import ChatService
from octavo.app.chat.store import StoreBusyError, StoreError
from octavo.app.chat.types import ChatSettings, Preset
from octavo.app.ui.chat_form import as_json, read_settings
from octavo.app.ui.compose import add_compose_routes
from octavo.app.ui.panels.deps import PanelDeps

PATH = "/api/ui/presets"
LONGEST_NAME = 80


def add_routes(app: FastAPI, deps: PanelDeps) -> None:
    panel = PresetsPanel(deps.service)
    add_compose_routes(app, deps.service)

    @app.get(PATH)
    def show(chat: str | None = None) -> dict[str, Any]:
        return panel.describe(chat)

    @app.post(f"{PATH}/chat")
    async def change(request: Request) -> dict[str, Any]:
        body = await read_body(request)
        settings = read_settings(body.get("settings"))
        await run_in_threadpool(panel.change, body.text("chat"), settings)
        return {}

    @app.post(PATH)
    async def keep(request: Request) -> dict[str, Any]:
        return await run_in_threadpool(panel.keep, await read_body(request))

    @app.post(f"{PATH}/delete")
    async def delete(request: Request) -> dict[str, Any]:
        return await run_in_threadpool(panel.delete, (await read_body(request)).text("id") or "")


class PresetsPanel:
    """What the routes do."""

    def __init__(self, service: ChatService) -> None:
        self._service = service

    def describe(self, chat_id: str | None) -> dict[str, Any]:
        """The chat's own settings (None: of a chat that is still to be made), what it inherits, and all presets."""
        service, engine = self._service, self._service.host.engine
        own = ChatSettings() if chat_id is None else service.store_of(chat_id).get_chat_settings(chat_id)
        if own is None:
            raise _unknown_chat()
        configured = service.settings.values.sampling.model_dump()
        values = inherited(configured, None if engine is None else engine.info.generation_defaults)
        fields = [{"name": name, **asdict(field), **asdict(values[name])} for name, field in CHAT_FIELDS.items()]
        return {
            "chat": chat_id,
            "settings": as_json(own),
            "fields": fields,
            "presets": self._all(),
            "model": None if engine is None else engine.info.name,
            "context": None if engine is None else engine.context_length,
        }

    def change(self, chat_id: str | None, settings: ChatSettings) -> None:
        """Take over a chat's settings; those of a chat that is still to be made are only looked at."""
        if chat_id is None:
            sampling_params(settings.sampling)
            return
        try:
            self._service.set_chat_settings(chat_id, settings)
        except UnknownChatError:
            raise _unknown_chat() from None

    def keep(self, body: Body) -> dict[str, Any]:
        """A new preset, or with an id what that one says from now on."""
        name = " ".join((body.text("name") or "").split())[:LONGEST_NAME]
        preset_id = body.text("id")
        said = read_settings({"system": body.get("system"), "sampling": body.get("sampling")})
        sampling_params(said.sampling)
        presets = self._service.store.presets
        try:
            if preset_id is None:
                preset = presets.create(name, said.system, said.sampling)
            else:
                preset = Preset(preset_id, name, said.system, said.sampling)
                if not presets.update(preset):
                    raise ApiError(404, "This preset was deleted.", code="unknown_preset")
        except StoreBusyError:
            raise
        except StoreError as error:
            raise ApiError(400, str(error), param="name", code="preset_name") from None
        return {"preset": _as_json(preset), "presets": self._all()}

    def delete(self, preset_id: str) -> dict[str, Any]:
        self._service.store.presets.delete(preset_id)
        return {"presets": self._all()}

    def _all(self) -> list[dict[str, Any]]:
        return [_as_json(preset) for preset in self._service.store.presets.list()]


def _unknown_chat() -> ApiError:
    return ApiError(404, str(UnknownChatError()), code="unknown_chat")


def _as_json(preset: Preset) -> dict[str, Any]:
    return {"id": preset.id, "name": preset.name, "system": preset.system, "sampling": dict(preset.sampling)}
