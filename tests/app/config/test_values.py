"""What config.yaml may say, and what each wrong value is answered with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from octavo.app.config import Settings, Size, engine_config
from octavo.app.config import schema as config_schema
from octavo.engine.errors import RequestError
from octavo.engine.sample.fields import make_params

Load = Callable[..., Settings]
Complaint = Callable[..., str]


def test_defaults_are_those_of_the_design(load: Load) -> None:
    config = load("x-nothing: here").values
    assert config.model.id == "starter"
    assert config.server.host == "127.0.0.1"
    assert config.server.port == 7860
    assert config.engine.paged_attention is True
    assert config.engine.max_running == 64
    assert config.sampling.temperature is None


def test_every_key_has_a_description_and_says_when_it_takes_effect() -> None:
    for key, field in config_schema.fields().items():
        assert field.description, key
        assert config_schema.applies(key) in {"live", "next request", "model reload", "restart"}, key


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("server: {port: '7861'}", "server.port", 7861),
        ("server: {port: 7861.0}", "server.port", 7861),
        ("sampling: {top_k: 010}", "sampling.top_k", 10),
        ("sampling: {temperature: 1e-5}", "sampling.temperature", 1e-5),
        ("sampling: {temperature: '1e-5'}", "sampling.temperature", 1e-5),
        ("sampling: {temperature: 1}", "sampling.temperature", 1.0),
        ("speculation: {mode: off}", "speculation.mode", "off"),
        ("%YAML 1.1\n---\nspeculation: {mode: off}", "speculation.mode", "off"),
        ("engine: {fusion: off}", "engine.fusion", False),
        ("engine: {fusion: No}", "engine.fusion", False),
        ("%YAML 1.1\n---\nengine: {fusion: off}", "engine.fusion", False),
        ("model: {context_length: 4096}", "model.context_length", 4096),
        ("model: {context_length: AUTO}", "model.context_length", "auto"),
        ("model: {device: 'cuda:1'}", "model.device", "cuda:1"),
        ("model: {id: 'C:\\models\\山'}", "model.id", "C:\\models\\山"),
        ("model: {folders: [a, 'b c']}", "model.folders", ("a", "b c")),
        ("engine: {kv_memory: 6 GiB}", "engine.kv_memory", Size(6 * 2**30, None, "6 GiB")),
        ("engine: {kv_memory: 512mb}", "engine.kv_memory", Size(512 * 10**6, None, "512mb")),
        ("engine: {kv_memory: 80%}", "engine.kv_memory", Size(None, 0.8, "80%")),
    ],
)
def test_values_read_as_people_mean_them(load: Load, text: str, key: str, value: Any) -> None:
    section, name = key.split(".")
    assert getattr(getattr(load(text).values, section), name) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server: {port: 70000}", "line 1: server.port must be a whole number from 0 to 65535, found 70000."),
        ("server: {port: true}", "line 1: server.port must be a whole number, found true."),
        ("server: {port: 7860 1}", "line 1: server.port must be a whole number, found '7860 1'."),
        ("server:\n\n  port:\n", "line 3: server.port must be a whole number, found nothing (null)."),
        ("engine: {fusion: ture}", "line 1: engine.fusion must be true or false, found 'ture'."),
        ("engine: {page_size: 0}", "line 1: engine.page_size must be a whole number from 1 to 256, found 0."),
        ("engine: {kv_memory: 120%}", "must be a share above 0% and at most 100%, found '120%'."),
        ("engine: {kv_memory: 6}", 'must be auto, a size such as "6 GiB", or a share'),
        ("engine: {kv_memory: 6 apples}", "found '6 apples'."),
        ("engine: {kv_memory: 0 GiB}", "must be more than 0 bytes"),
        ("model: {context_length: 8k}", "must be auto or a whole number, found '8k'."),
        ("model: {context_length: 3}", "must be a whole number from 16 to 1073741824 or auto, found 3."),
        ("model: {device: gpu}", "must be auto, cpu, cuda, cuda:N, found 'gpu'"),
        ("model: {dtype: float61}", "found 'float61'; did you mean float16?"),
        ("model: {revision: 1234567}", "must be text (put it in quotes"),
        ("model: {revision: 2026-01-02}", "found the date 2026-01-02"),
        ("model: {folders: /models}", "must be a list, found '/models'."),
        ("model: {folders: [a, 1]}", "found 1 (entry 2)."),
        ("model: {id: ''}", "must be text, found ''."),
        ("model: {id: !!python/name:os.system x}", "found tag:yaml.org,2002:python/name:os.system."),
        ("sampling: {top_p: 1.5}", "must be a number above 0 to 1 or null, found 1.5."),
        ("sampling: {temperature: -1}", "must be a number from 0 to 5 or null, found -1"),
        ("sampling: {temperature: .nan}", "found nan."),
        ("sampling: {max_tokens: 0}", "must be a whole number from 1 or null, found 0."),
        ("app: {theme: drak}", "found 'drak'; did you mean dark?"),
        ("engine: 4", "line 1: engine is a section"),
        ("engine: [a]", "line 1: engine is a section"),
    ],
)
def test_a_wrong_value_is_answered_with_line_key_found_and_allowed(
    complaint: Complaint, text: str, expected: str
) -> None:
    assert expected in complaint(text)


def test_sampling_values_are_held_to_the_range_requests_are_held_to() -> None:
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"):
        for value in (-1, 0, 0.005, 0.5, 1, 5, 5.5, 10, 10.5, 2**70):
            try:
                make_params({name: value}, vocab_size=100)
            except RequestError:
                with pytest.raises(ValidationError):
                    config_schema.Config.model_validate({"sampling": {name: value}})


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ("engine: {scheduler: mlfq}", "mlfq scheduler"),
        ("engine: {preemption: swap}", "swapping of pages to host memory"),
        ("engine: {preemption: auto}", "swapping of pages to host memory"),
        ("engine: {swap_memory: 8 GiB}", "swapping of pages to host memory"),
        ("engine: {kv_cache_dtype: int4}", "cache in this format"),
        ("engine: {remote: 'http://127.0.0.1:1'}", "remote engine"),
    ],
)
def test_a_value_whose_feature_does_not_exist_is_refused_with_the_features_name(
    complaint: Complaint, text: str, feature: str
) -> None:
    said = complaint(text)
    assert f"this version has no {feature}; allowed:" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server: {prot: 1}", "server.prot is not a known key; did you mean server.port?"),
        ("mdoel: {id: x}", "mdoel is not a known key; did you mean model?"),
        ("engine: {schedular: fcfs}", "did you mean engine.scheduler?"),
        ("port: 7860", "port is at the wrong level; it belongs under `server:` (server.port)."),
        ("model: {draft_model: x}", "model.draft_model is at the wrong level; it belongs under `speculation:`"),
        ("server.port: 7860", "server.port is at the wrong level; write `port:` indented under `server:`."),
        ("draft: {x: 1}", "draft is not a known key; sections are model, engine"),
        ("model:\n  zzz: 1", "line 2: model.zzz is not a known key; keys of model are id, revision"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_one_or_its_right_place(
    complaint: Complaint, text: str, expected: str
) -> None:
    assert expected in complaint(text)


def test_every_fault_is_reported_in_the_order_of_the_file(complaint: Complaint) -> None:
    said = complaint("server:\n  port: 0.5\napp:\n  theme: x\nmodel:\n  dtype: y\n").splitlines()
    assert [line.split(":")[1].split()[0] for line in said] == ["server.port", "app.theme", "model.dtype"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "my-pc"])
def test_listening_to_the_network_needs_a_key(load: Load, complaint: Complaint, host: str) -> None:
    assert "server.host" in complaint(f"server: {{host: '{host}'}}")
    assert load(f"server: {{host: '{host}', api_key: s3cret}}").values.server.host == host


@pytest.mark.parametrize("host", ["my-pc", "my_pc.lan", "höst.example", "nas.", "192.168.1.2", "::1", "[fe80::1]"])
def test_names_and_addresses_of_machines_may_be_listened_on(load: Load, host: str) -> None:
    assert load(f"server: {{host: '{host}', api_key: s3cret}}").values.server.host == host


BROKEN_ADDRESSES = ["999.1.1.1", "127.0.0.256", "1.2.3", "[::g]", "127.0.0.1:80"]
BROKEN_NAMES = ["", "not a host", " 127.0.0.1", "my-pc/page", "a..b", "x" * 64, "user@my-pc"]


@pytest.mark.parametrize("host", [*BROKEN_ADDRESSES, *BROKEN_NAMES])
def test_what_is_no_address_is_not_called_the_network(load: Load, complaint: Complaint, host: str) -> None:
    said = complaint(f"server: {{host: '{host}', api_key: s3cret}}")
    assert f"server.host '{host}' is no address" in said
    assert said == complaint("server: {api_key: s3cret}", server__host=host).replace("--host:", "line 1:")


def test_an_empty_key_and_an_endless_one_are_named_without_being_shown(load: Load, complaint: Complaint) -> None:
    assert "server.api_key is empty" in complaint("server: {api_key: ''}")
    assert load(f"server: {{api_key: {'k' * 512}}}").values.server.api_key is not None
    said = complaint(f"server: {{api_key: {'k' * 513}}}")
    assert "server.api_key is longer than 512 characters" in said
    assert "kkk" not in said


@pytest.mark.parametrize("number", [str(10**400), f"-{10**400}", "0x" + "f" * 6000, f"'{10**400}'"])
@pytest.mark.parametrize("key", ["sampling.temperature", "sampling.top_k", "sampling.max_tokens", "server.port"])
def test_a_number_too_large_for_the_machine_is_out_of_range(complaint: Complaint, key: str, number: str) -> None:
    if key == "sampling.max_tokens" and not number.startswith(("-", "0x")):
        return  # any length that is more than the context's is the context's
    section, name = key.split(".")
    assert f"{key} must be a" in complaint(f"{section}: {{{name}: {number}}}")


def test_a_count_of_tokens_that_no_vocabulary_has_is_refused(load: Load, complaint: Complaint) -> None:
    assert load("sampling: {top_k: 2147483647}").values.sampling.top_k == 2**31 - 1
    assert "from 0 to 2147483647" in complaint("sampling: {top_k: 9223372036854775808}")


def test_a_size_beyond_all_numbers_is_refused(complaint: Complaint) -> None:
    assert "engine.kv_memory must be a size" in complaint(f"engine: {{kv_memory: {'9' * 400} GiB}}")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_loopback_needs_no_key(load: Load, host: str) -> None:
    assert load(f"server: {{host: '{host}'}}").values.server.api_key is None


def test_a_secret_is_shown_nowhere(load: Load, complaint: Complaint) -> None:
    settings = load("server: {api_key: s3cret}")
    assert settings.public()["server"]["api_key"] == "set"
    assert load("").public()["server"]["api_key"] is None
    assert "s3cret" not in repr(settings)
    assert settings.values.server.api_key is not None
    assert settings.values.server.api_key.get_secret_value() == "s3cret"
    assert "123456" not in complaint("server: {api_key: 123456}")


def test_the_engine_gets_resolved_values(load: Load) -> None:
    made = engine_config(
        load(
            "model: {device: cpu, context_length: 2048}\n"
            "engine: {paged_attention: false, fusion: false, kv_memory: 2 GiB, prefill_chunk: 64, max_running: 3}"
        ).values
    )
    assert (made.device, made.context_length, made.paged_attention, made.fusion) == ("cpu", 2048, False, False)
    assert (made.kv_memory_bytes, made.kv_memory_share, made.prefill_chunk, made.max_running) == (2**31, None, 64, 3)
    by_share = engine_config(load("engine: {kv_memory: 25%}").values)
    assert (by_share.kv_memory_bytes, by_share.kv_memory_share, by_share.context_length) == (None, 0.25, None)
