"""Whatever JSON is sent: an answer or a clear refusal, never a fault of the server."""

from __future__ import annotations

import json
from typing import Any

import httpx
from fake_engine import FakeEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.app.api.chat import UNSUPPORTED
from octavo.app.api.sampling import FIELDS

NAMES = [
    *FIELDS,
    *UNSUPPORTED,
    *("model", "messages", "prompt", "n", "max_tokens", "max_completion_tokens", "stream", "stream_options"),
    *("logprobs", "top_logprobs", "echo", "chat_template_kwargs", "reasoning_effort", "continue_final_message"),
]
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 3)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "default", "user", "system", "assistant", "\ud83d", "\x00", "<|im_end|>", "auto"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "name", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)
GOOD = {"model": "default", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "max_tokens": 3}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.dictionaries(st.sampled_from(NAMES), values, max_size=3),
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions"]),
)
def test_no_json_is_a_fault_of_the_server(
    http: httpx.Client, engine: FakeEngine, fields: dict[str, Any], path: str
) -> None:
    content = json.dumps({**GOOD, "n": None, **fields})
    answer = http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error["message"]
        assert error["code"]
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
    assert engine.is_idle
