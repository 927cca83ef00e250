"""Where a chat's sampling values come from, as its settings show it."""

from __future__ import annotations

import pytest

from octavo.app.chat.sampling import CHAT_FIELDS, Inherited, inherited, sampling_params
from octavo.engine.errors import RequestError
from octavo.engine.sample.fields import FIELDS


def test_each_value_is_shown_with_whose_word_it_is() -> None:
    shown = inherited({"temperature": 0.2, "top_k": None}, {"temperature": 0.6, "top_k": 20, "top_p": 3.0})
    assert list(shown) == list(CHAT_FIELDS)
    assert shown["temperature"] == Inherited(0.2, "settings")
    assert shown["top_k"] == Inherited(20, "model")
    assert shown["top_p"] == Inherited(0.95, "octavo")  # the model's own value is none it could have
    assert shown["min_p"] == Inherited(0.0, "octavo")
    assert shown["max_tokens"] == Inherited(None, "octavo")


def test_what_is_shown_is_what_a_reply_gets() -> None:
    settings, model = {"top_p": 0.8}, {"temperature": 0.6, "top_k": 20}
    params = sampling_params({}, settings=settings, model=model)
    for name, value in inherited(settings, model).items():
        if value.value is not None:
            assert getattr(params, name) == value.value, name


def test_without_a_model_its_share_is_left_to_ours() -> None:
    assert inherited({}, None)["temperature"] == Inherited(0.7, "octavo")


def test_the_page_s_bounds_are_within_the_engine_s() -> None:
    for name, field in CHAT_FIELDS.items():
        allowed = FIELDS[name]
        for bound, step in ((field.least, -1), (field.most, 1)):
            if bound is None:
                continue
            allowed.read(allowed, bound, 32000)
            with pytest.raises(RequestError, match=name):
                allowed.read(allowed, bound + step, 32000)


def test_every_slider_offers_only_what_is_allowed() -> None:
    for name, field in CHAT_FIELDS.items():
        allowed = FIELDS[name]
        if field.high > field.low:
            for value in (field.low, field.high):
                allowed.read(allowed, int(value) if field.step == 1 else value, 32000)
        if field.default is not None:
            assert allowed.read(allowed, field.default, 32000) == field.default
