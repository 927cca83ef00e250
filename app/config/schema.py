"""The model of config.yaml: every key with its default, its range, its description and when a change takes effect.

The example file, the JSON schema, the checks and the texts of the errors are all made from this one table.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    SecretStr,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from octavo.app.config.sizes import SIZE_FORMS, Size

Applies = Literal["live", "next request", "model reload", "restart"]

MOST_TOKENS = 1 << 30  # of one chat; no model comes near
LONGEST_KEY = 512  # characters; what a browser sends when the key is entered stays well below the guards' bound

_DECIMAL = re.compile(r"[+-]?\d+")
_REAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _wrong(expected: str) -> PydanticCustomError:
    return PydanticCustomError("octavo", "must be {expected}", {"expected": expected})


def _boolean(value: object) -> object:
    """true and false; also yes, no, on, off, which older YAML readers take for them."""
    if isinstance(value, str) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    if isinstance(value, bool):
        return value
    raise _wrong("true or false")


def _whole(value: object) -> object:
    """A whole number; one in quotes counts as the number it spells, so that file and environment read alike."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise _wrong("a whole number")


def _real(value: object) -> object:
    if isinstance(value, str) and _REAL.fullmatch(value.strip()):
        return float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # a whole number beyond the range of a float
            return math.inf if value > 0 else -math.inf
    raise _wrong("a number")


def _text(value: object) -> object:
    if not isinstance(value, str):
        raise _wrong('text (put it in quotes: "...")')
    if re.search(r"[\x00-\x1f\x7f-\xa0\u2028\u2029]", value):
        raise PydanticCustomError(
            "octavo",
            "must not hold control characters; in double quotes a backslash begins an escape, so write a Windows path "
            "in single quotes or with /",
        )
    if re.search(r"[\ud800-\udfff\ufffd]", value):
        raise PydanticCustomError("octavo", "must not hold a character that was lost on the way; write it anew")
    return str(value)


def _word(value: object) -> object:
    """A choice: YAML 1.1 files read a bare `off` as false, which here means the word."""
    return "off" if value is False else value


def _auto_or_whole(value: object) -> object:
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    try:
        return _whole(value)
    except PydanticCustomError:
        raise _wrong("auto or a whole number") from None


class _SizeForm:
    """Lets pydantic read and write `Size`."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._read, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^(auto|\d+(\.\d+)? ?(%|[kKmMgGtT]?i?[bB]))$"}

    @staticmethod
    def _read(value: object) -> Size:
        if isinstance(value, Size):
            return value
        if not isinstance(value, str):
            raise _wrong(SIZE_FORMS)
        try:
            return Size.parse(value)
        except OverflowError:
            raise _wrong("a size that a computer can have") from None
        except ValueError as error:
            raise PydanticCustomError("octavo", "{reason}", {"reason": str(error)}) from None


Flag: TypeAlias = Annotated[bool, BeforeValidator(_boolean)]
Whole: TypeAlias = Annotated[int, BeforeValidator(_whole)]
Real: TypeAlias = Annotated[float, BeforeValidator(_real), Field(allow_inf_nan=False)]
Text: TypeAlias = Annotated[str, BeforeValidator(_text)]
AutoTokens: TypeAlias = Annotated[
    Annotated[int, Field(ge=16, le=MOST_TOKENS)] | Literal["auto"], BeforeValidator(_auto_or_whole)
]
Memory: TypeAlias = Annotated[Size, _SizeForm]
Secret: TypeAlias = Annotated[
    SecretStr, BeforeValidator(lambda v: v if isinstance(v, SecretStr) else _text(v)), PlainSerializer(lambda _: "set")
]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    return host.lower() in {"localhost", "::1", "[::1]"} or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def is_broken_address(host: str) -> bool:
    """Whether `host` can be neither an address nor the name of a machine (RFC 1123, and `_`, which Windows allows)."""
    if ":" not in host and re.fullmatch(r"\[?[\d.]+\]?", host) is None:
        try:
            name = host.encode("idna").decode("ascii")
        except UnicodeError:  # a part of it is empty or has more than 63 characters
            return True
        return re.fullmatch(r"[\w-]+(\.[\w-]+)*\.?", name, re.ASCII) is None
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return True
    return False


def key(
    default: object,
    description: str,
    applies: Applies,
    *,
    not_here: Mapping[str, str] | None = None,
    **limits: Any,
) -> Any:
    """A documented key. `not_here` names values whose feature this version does not have; "*" stands for any other."""
    extra: dict[str, Any] = {"applies": applies}
    if not_here:
        extra["not_here"] = dict(not_here)
    return Field(default=default, description=description, json_schema_extra=extra, **limits)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ModelSection(Section):
    """Which model is loaded, and how."""

    id: Text = key(
        "starter",
        "starter (a small model, fetched at the first start), none, org/name of the Hugging Face hub, org/name:Q4_K_M "
        "(one file of a GGUF repository), a folder, or a .gguf file. Write Windows paths in single quotes or with /.",
        "model reload",
        min_length=1,
    )
    revision: Text = key(
        "main",
        "Branch, tag or commit of a hub model. Put a commit in quotes.",
        "model reload",
        min_length=1,
    )
    folders: tuple[Text, ...] = key((), "More folders to look for models in.", "live")
    device: Annotated[str, BeforeValidator(_word)] = key(
        "auto",
        "auto (a CUDA GPU if there is one, else the CPU), cpu, cuda, or cuda:N for one of several GPUs.",
        "model reload",
        pattern=r"^(auto|cpu|cuda|cuda:\d+)$",
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = key(
        "auto", "Number format of the computation; auto chooses what suits model and device.", "model reload"
    )
    context_length: AutoTokens = key(
        "auto",
        "Tokens one chat can hold; auto is the model's own length, cut to what fits one full chat into memory.",
        "model reload",
    )
    quantization: Annotated[
        Literal["none", "packed", "int8", "int8-dynamic", "llm-int8", "int4", "int4-symmetric", "fp8", "nf4", "fp4"],
        BeforeValidator(_word),
    ] = key(
        "none",
        "Format the weights are converted to at load; none keeps the checkpoint's, expanded to 16 bit where that is "
        "faster; packed never expands what a checkpoint stores in fewer bits. docs/quantization.md compares them.",
        "model reload",
    )
    quantize_head: Flag = key(
        False,
        "Convert the output head too: smaller and faster, and the part of a model that suffers most.",
        "model reload",
    )


class EngineSection(Section):
    """How the engine runs it."""

    paged_attention: Flag = key(
        True,
        "true: keys and values live in pages given out on demand and shared by chats that begin alike. false: every "
        "chat reserves its whole context length at once.",
        "model reload",
    )
    fusion: Flag = key(
        True,
        "true: fused kernels (and captured graphs on CUDA). false: every operation by itself, in plain torch.",
        "model reload",
    )
    prefix_sharing: Flag = key(
        True,
        "Chats that begin alike share what was computed for the beginning. Without effect if paged_attention is false.",
        "model reload",
    )
    page_size: Whole = key(16, "Tokens a page holds.", "model reload", ge=1, le=256)
    kv_cache_dtype: Literal["auto", "float32", "float16", "bfloat16", "int8", "fp8"] = key(
        "auto",
        "Number format of cached keys and values; auto is the model's. int8 and fp8 (E4M3) take half the memory of 16 "
        "bit, so chats may be twice as long or as many, and long ones are written faster on a GPU; replies change a "
        "little.",
        "model reload",
        not_here=dict.fromkeys(("fp8_e5m2", "int4"), "cache in this format"),
    )
    kv_memory: Memory = key(
        Size(), 'Memory for keys and values: auto, a size ("6 GiB") or a share of what is free ("80%").', "model reload"
    )
    swap_memory: Literal["auto"] = key(
        "auto",
        "Host memory that pages may be moved to; this version moves none, so only auto.",
        "model reload",
        not_here={"*": "swapping of pages to host memory"},
    )
    max_running: Whole = key(64, "Replies that are written at the same time, at most.", "model reload", ge=1, le=4096)
    queue_limit: Whole = key(256, "Requests that may wait; one more is refused.", "model reload", ge=1, le=1_000_000)
    prefill_chunk: AutoTokens = key(
        "auto",
        "Prompt tokens read in one step, at most; small chunks keep running replies smooth.",
        "model reload",
    )
    scheduler: Literal["fcfs", "longest-prefix"] = key(
        "fcfs",
        "Who is next: fcfs (first come, first served) or longest-prefix (who shares most with what is cached).",
        "model reload",
        not_here={"mlfq": "mlfq scheduler"},
    )
    preemption: Literal["recompute"] = key(
        "recompute",
        "What happens to a reply that must give up its memory: recompute reads its tokens again later.",
        "model reload",
        not_here=dict.fromkeys(("swap", "auto"), "swapping of pages to host memory"),
    )
    target_gap_ms: Real = key(
        50.0,
        "The gap between two tokens of a running reply that reading another's prompt may cause, in milliseconds.",
        "model reload",
        gt=0,
        le=60_000,
    )
    remote: None = key(
        None,
        "Address of an engine on another machine; this version has only the built-in one.",
        "restart",
        not_here={"*": "remote engine"},
    )


class SpeculationSection(Section):
    """Guessing tokens ahead and checking them in one step."""

    mode: Annotated[Literal["off", "ngram", "draft", "self", "auto"], BeforeValidator(_word)] = key(
        "off",
        "Who guesses: off (one token at a time), ngram (a reply goes on as the same words did before), draft (a small "
        "model), self (the model's first layers), auto (ngram, else draft). No text changes.",
        "model reload",
    )
    draft_model: Text | None = key(
        None,
        "The small model that guesses for draft and auto, named as in model.id. It must have the same vocabulary.",
        "model reload",
    )
    draft_tokens: Whole = key(5, "Tokens guessed ahead when mode is not off.", "model reload", ge=1, le=32)


class SamplingSection(Section):
    """How tokens are chosen, unless the chat or the request says otherwise. null: the model's own value."""

    temperature: Real | None = key(
        None, "0 always takes the likeliest token; higher is freer.", "next request", ge=0, le=5
    )
    top_p: Real | None = key(
        None, "Keep the likeliest tokens up to this total probability.", "next request", gt=0, le=1
    )
    top_k: Whole | None = key(None, "Keep this many likeliest tokens; 0: all.", "next request", ge=0, le=2**31 - 1)
    min_p: Real | None = key(
        None, "Keep tokens at least this likely, relative to the likeliest; 0: all.", "next request", ge=0, le=1
    )
    repetition_penalty: Real | None = key(
        None, "Above 1 makes tokens that were there before less likely; 1: off.", "next request", ge=0.01, le=10
    )
    max_tokens: Whole | None = key(
        None, "Tokens of a reply, at most; null: to the end of the context.", "next request", ge=1
    )
    seed: Whole | None = key(
        None, "The same seed gives the same reply; null: a new one each time.", "next request", ge=0, le=2**63 - 1
    )


class ServerSection(Section):
    """The page and the API."""

    host: Text = key("127.0.0.1", "Address to listen on; 127.0.0.1 is this machine alone.", "restart")
    port: Whole = key(
        7860,
        "Port to listen on. If another program has 7860, the next free one up to 7870 is taken; another port set here "
        "is taken or refused. 0: any free port.",
        "restart",
        ge=0,
        le=65535,
    )
    open_browser: Flag = key(True, "Open the page in the browser at start, where there is a display.", "restart")
    api_key: Secret | None = key(
        None,
        "Clients must send this key as `Authorization: Bearer KEY`.",
        "restart",
        min_length=1,
        max_length=LONGEST_KEY,
    )
    allowed_hosts: tuple[Text, ...] = key(
        (), "More host names the server answers to, besides this machine's own.", "restart"
    )
    allowed_origins: tuple[Text, ...] = key((), "Other web pages, as https://name, that may call the API.", "restart")

    @model_validator(mode="after")
    def _listens_at_an_address_and_to_the_network_only_on_purpose(self) -> ServerSection:
        if is_broken_address(self.host):
            raise PydanticCustomError("octavo_host", "is no address; use 127.0.0.1, or an address of this machine")
        if not is_loopback(self.host) and self.api_key is None:
            raise PydanticCustomError(
                "octavo_host", "opens Octavo to the network; set server.api_key as well, or use 127.0.0.1"
            )
        return self


class AppSection(Section):
    """The app around it."""

    theme: Literal["system", "light", "dark"] = key("system", "Colours of the page: system, light or dark.", "live")
    language: Literal["auto", "en", "zh-CN"] = key(
        "auto", "Language of the page: auto (the browser's), en or zh-CN.", "live"
    )
    unload_after_minutes: Whole = key(
        0,
        "Unload the model after this many minutes without a request; the next one loads it again. 0: never.",
        "live",
        ge=0,
        le=10_080,
    )
    data_folder: Text | None = key(
        None,
        "Folder where the chats are kept; null: the usual one. The variable OCTAVO_DATA_DIR goes before it. The page's "
        "settings move the chats along.",
        "restart",
        min_length=1,
    )
    log_level: Literal["debug", "info", "warning", "error"] = key(
        "info", "How much is logged: debug, info, warning or error.", "live"
    )


class Config(Section):
    """All of config.yaml."""

    model: ModelSection = Field(default=ModelSection())
    engine: EngineSection = Field(default=EngineSection())
    speculation: SpeculationSection = Field(default=SpeculationSection())
    sampling: SamplingSection = Field(default=SamplingSection())
    server: ServerSection = Field(default=ServerSection())
    app: AppSection = Field(default=AppSection())


def sections() -> dict[str, type[Section]]:
    """Section name -> its model, in the order of the file."""
    return {name: field.annotation for name, field in Config.model_fields.items()}  # type: ignore[misc]


def fields() -> dict[str, FieldInfo]:
    """Dotted key (`server.port`) -> its field, in the order of the file."""
    return {
        f"{section}.{name}": field
        for section, model in sections().items()
        for name, field in model.model_fields.items()
    }


def applies(dotted_key: str) -> Applies:
    """When a change of this key takes effect."""
    return _extra(fields()[dotted_key])["applies"]  # type: ignore[no-any-return]


def not_here(dotted_key: str) -> Mapping[str, str]:
    """Values of this key that are refused because this version lacks the feature, with the feature's name."""
    return _extra(fields()[dotted_key]).get("not_here", {})  # type: ignore[no-any-return]


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra  # type: ignore[return-value]
