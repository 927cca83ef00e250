"""The table of sampling fields: every wrong value is refused by name, in one sentence."""

from __future__ import annotations

import math

import pytest

from octavo.engine.errors import RequestError
from octavo.engine.request import SamplingParams
from octavo.engine.sample import FIELDS, describe_fields, make_params, usable_defaults


def make(**fields: object) -> SamplingParams:
    return make_params(fields, vocab_size=100)


def test_nothing_given_is_the_plain_distribution() -> None:
    assert make() == SamplingParams()


def test_null_means_the_default_of_every_field() -> None:
    assert make(**dict.fromkeys(FIELDS)) == SamplingParams()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", 5.01), ("temperature", math.nan), ("temperature", math.inf),
        ("temperature", "0.7"), ("temperature", True), ("temperature", [1]),
        ("temperature", 10**400), ("temperature", -(10**400)), ("top_p", 10**400),
        ("top_p", 0), ("top_p", 1.01), ("top_p", -1), ("top_p", math.nan),
        ("top_k", -2), ("top_k", 1.5), ("top_k", "40"), ("top_k", True),
        ("min_p", -0.01), ("min_p", 1.01),
        ("repetition_penalty", 0), ("repetition_penalty", 0.009), ("repetition_penalty", 10.5),
        ("presence_penalty", 2.01), ("presence_penalty", -2.01), ("frequency_penalty", 3), ("frequency_penalty", "x"),
        ("logit_bias", {"5": 101}), ("logit_bias", {"x": 1}), ("logit_bias", {"100": 1}), ("logit_bias", {"-1": 1}),
        ("logit_bias", {"5": 10**400}), ("logit_bias", {10**400: 1}), ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", {"5": math.nan}), ("logit_bias", {"5": None}), ("logit_bias", 3), ("logit_bias", [5]),
        ("logit_bias", dict.fromkeys(range(1025), 0)),
        ("seed", 2**64), ("seed", -(2**63) - 1), ("seed", 1.5), ("seed", "1"),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2.5), ("max_tokens", False),
        ("stop", ""), ("stop", ["a", ""]), ("stop", ["a", 3]), ("stop", 7), ("stop", ["x"] * 17),
        ("stop_token_ids", [100]), ("stop_token_ids", [2**63]),
        ("stop_token_ids", [-1]), ("stop_token_ids", ["a"]), ("stop_token_ids", {}),
        ("ignore_eos", 1), ("ignore_eos", "true"),
        ("logprobs", -1), ("logprobs", 21), ("logprobs", 2**63), ("logprobs", True), ("prompt_logprobs", 21),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_field(field: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        make(**{field: value})
    assert caught.value.field == field
    assert field in caught.value.message
    assert caught.value.message.endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("temperature", 0, 0.0), ("temperature", 5, 5.0), ("top_p", 1, 1.0), ("min_p", 1, 1.0),
        ("top_k", -1, 0), ("top_k", 0, 0), ("top_k", 40.0, 40),
        ("top_k", 101, 100), ("top_k", 2**63, 100), ("top_k", 10**400, 100),
        ("seed", -1, None), ("seed", 0, 0), ("seed", 2**64 - 1, 2**64 - 1), ("seed", -(2**63), -(2**63)),
        ("max_tokens", 1, 1), ("max_tokens", 65535, 65535), ("ignore_eos", True, True), ("logprobs", 0, 0),
        ("stop", "a", ("a",)), ("stop", ["a", "b", "a"], ("a", "b")), ("stop", [], ()),
        ("logit_bias", {"5": -100, 7: 1}, ((5, -100.0), (7, 1.0))), ("logit_bias", ((5, 2),), ((5, 2.0),)),
        ("stop_token_ids", [3, 3, 4], (3, 4)), ("stop_token_ids", 3, (3,)),
    ],
)  # fmt: skip
def test_the_edges_of_each_range_are_allowed(field: str, value: object, expected: object) -> None:
    assert getattr(make(**{field: value}), field) == expected


def test_a_request_goes_before_the_defaults_and_null_does_not() -> None:
    params = make_params(
        {"temperature": 0.2, "top_p": None}, vocab_size=9, defaults={"temperature": 0.9, "top_p": 0.8, "top_k": None}
    )
    assert (params.temperature, params.top_p, params.top_k) == (0.2, 0.8, 0)


def test_zero_tokens_are_allowed_only_where_the_caller_scores_a_prompt() -> None:
    assert make_params({"max_tokens": 0}, vocab_size=9, allow_zero_tokens=True).max_tokens == 0
    with pytest.raises(RequestError, match="max_tokens"):
        make_params({"max_tokens": False}, vocab_size=9, allow_zero_tokens=True)


def test_an_unknown_field_is_answered_with_the_nearest() -> None:
    with pytest.raises(RequestError, match="Did you mean 'temperature'") as caught:
        make(temprature=1)
    assert caught.value.field == "temprature"


def test_a_slip_in_a_models_own_settings_refuses_no_request() -> None:
    kept, notices = usable_defaults({"temperature": 0.6, "top_p": 1.5, "top_k": 20, "eos_token_id": 2}, vocab_size=9)
    assert kept == {"temperature": 0.6, "top_k": 20}
    assert len(notices) == 1
    assert "top_p" in notices[0]


def test_the_documentation_has_a_row_for_every_field() -> None:
    table = describe_fields()
    for name in SamplingParams.__dataclass_fields__:
        assert f"| `{name}` |" in table


@pytest.mark.parametrize("field", ["temperature", "logit_bias", "seed", "stop_token_ids", "logprobs"])
def test_a_number_that_python_cannot_write_is_refused_like_any_other(field: str) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        make(**{field: 10**5000})
    assert caught.value.field == field
