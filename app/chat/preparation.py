"""What a reply is made from: the chat's turns as a prompt, and the sampling values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.app.chat.context import Prompt, build_prompt, overflow_of
from octavo.app.chat.sampling import sampling_params
from octavo.app.chat.store import ChatStore
from octavo.app.chat.types import ChatSettings, Message
from octavo.engine.request import SamplingParams

if TYPE_CHECKING:
    from octavo.app.config import Settings
    from octavo.engine.engine import Engine


def prepare_reply(
    engine: Engine, message: Message, *, store: ChatStore, settings: Settings, unsaved: Mapping[str, Message]
) -> tuple[Prompt, SamplingParams]:
    """Prompt and sampling values for `message`, a reply that is still empty or goes on after its text.

    `unsaved`: replies of which the store does not have the end yet, by id. Raises OctavoError.
    """
    own = store.get_chat_settings(message.chat_id) or ChatSettings()
    params = sampling_params(
        {},
        chat=own.sampling,
        settings=settings.values.sampling.model_dump(),
        model=engine.info.generation_defaults,
        vocab_size=engine.info.vocab_size,
    )
    params = replace(params, stop=(*params.stop, *engine.template.stop_strings))
    turns = [unsaved.get(turn.id, turn) for turn in store.branch(message.parent_id or "")]
    goes_on = bool(message.content or message.reasoning)
    if goes_on:
        turns.append(message)
    if own.system:
        turns.insert(0, Message(id="", chat_id=message.chat_id, role="system", content=own.system))

    def sequence(message_id: str) -> tuple[int, ...]:  # of a reply that is not on disk yet, only the text is known
        return () if message_id in unsaved else store.sequence(message_id)

    prompt = build_prompt(
        engine,
        turns,
        sequence=sequence,
        max_tokens=params.max_tokens,
        continue_final=goes_on,
        overflow=overflow_of(own.options),
    )
    return prompt, params
