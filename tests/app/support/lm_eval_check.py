"""lm-eval against our own server, and the same log-likelihoods computed by transformers: what `echo` with `logprobs` is
worth as a measuring tool.

`python tests/app/support/lm_eval_check.py STARTER.gguf` prints the comparison as JSON. It needs lm-eval[api] 0.4.13 or
newer beside Octavo. Both tasks come from Python's own documentation: which of four endings belongs to a paragraph, and
the perplexity of whole sections.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hosting import ready_host, settings
from serving import running

from octavo.app.chat.store import ChatStore
from octavo.app.server import create_app
from octavo.engine import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.perplexity import shipped_text

WINDOW = 1024
_ENDINGS = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{beginning}}}}"
doc_to_choice: "{{{{endings}}}}"
doc_to_target: "{{{{right}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
_SECTIONS = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{section}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}]
"""


def endings(count: int) -> list[dict[str, Any]]:
    """Paragraphs without their second halves, each with its own and three others' as choices."""
    paragraphs = [" ".join(part.split()) for part in shipped_text().split("\n\n")]
    usable = [one for one in paragraphs if 240 <= len(one) <= 480 and one[0].isupper() and one.endswith(".")]
    draw = random.Random(0)
    taken = draw.sample(usable, 4 * count)
    halves = [(one[: one.index(" ", len(one) // 2)], one[one.index(" ", len(one) // 2) :]) for one in taken]
    rows = []
    for place in range(count):
        right = draw.randrange(4)
        choices = [end for _, end in halves[count + 3 * place : count + 3 * place + 3]]
        choices.insert(right, halves[place][1])
        rows.append({"beginning": halves[place][0], "endings": choices, "right": right})
    return rows


def sections(count: int) -> list[dict[str, Any]]:
    """Runs of some 2,500 characters."""
    text = shipped_text()
    return [{"section": text[at : at + 2500]} for at in range(10_000, 10_000 + count * 20_000, 20_000)]


def compare(starter: Path, questions: int = 12, runs: int = 2) -> dict[str, Any]:
    """What lm-eval found, and how far its numbers are from those of transformers (nats)."""
    with tempfile.TemporaryDirectory() as folder, open_checkpoint(starter) as checkpoint:
        where = Path(folder)
        tokenizer = checkpoint.load_tokenizer()
        tokenizer.save_pretrained(where / "tokenizer")
        with _served(starter, where) as address:
            options = (f"{address}/v1/completions", str(where / "tokenizer"), tokenizer.bos_token_id)
            asked = {
                "endings": _evaluate(where, "endings", _ENDINGS, endings(questions), False, *options),
                "sections": _evaluate(where, "sections", _SECTIONS, sections(runs), True, *options),
            }
        model = _reference(checkpoint)
    found: dict[str, Any] = {}
    for name, (metrics, seen) in asked.items():
        truth = [_scores(model, context, continuation) for context, continuation, _, _ in seen]
        far = [abs(total - true) / len(ids) for (_, ids, total, _), (true, _) in zip(seen, truth, strict=True)]
        found[name] = {
            **metrics,
            "requests": len(seen),
            "tokens": sum(len(ids) for _, ids, _, _ in seen),
            "most_off_per_token": max(far),
            "same_greedy": sum(greedy == true for (_, _, _, greedy), (_, true) in zip(seen, truth, strict=True)),
        }
    found["endings"]["acc_by_transformers"] = _accuracy(asked["endings"][1], model, endings(questions))
    return found


@contextmanager
def _served(starter: Path, folder: Path) -> Iterator[str]:
    engine = Engine.load(starter, EngineConfig(device="cpu", dtype="float32", context_length=WINDOW + 1))
    try:
        config = settings(folder)
        with running(create_app(config, ready_host(engine, config), ChatStore(None))) as address:  # type: ignore[arg-type]
            yield address
    finally:
        engine.close()


def _evaluate(
    where: Path,
    name: str,
    task: str,
    rows: list[dict[str, Any]],
    as_ids: bool,
    url: str,
    tokenizer: str,
    first_id: int,
) -> tuple[dict[str, float], list[tuple[list[int], list[int], float, bool]]]:
    """(metrics, (context ids, continuation ids, log-likelihood, is greedy) of every request)."""
    from lm_eval import simple_evaluate
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    seen = []

    class Recorded(LocalCompletionsAPI):
        def _loglikelihood_tokens(self, requests: Any, **kwargs: Any) -> Any:
            results = super()._loglikelihood_tokens(requests, **kwargs)
            seen.extend((list(r[1]), list(r[2]), *found) for r, found in zip(requests, results, strict=True))
            return results

    file = where / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (where / f"{name}.yaml").write_text(task.format(name=name, file=json.dumps(str(file))), encoding="utf-8")
    model = Recorded(
        model="default", base_url=url, tokenizer=tokenizer, tokenized_requests=as_ids, batch_size=4, max_length=WINDOW,
        custom_prefix_token_id=first_id, max_retries=1,
    )  # fmt: skip
    tasks = TaskManager(include_path=str(where), include_defaults=False)
    results = simple_evaluate(model=model, tasks=[name], task_manager=tasks, bootstrap_iters=0)["results"][name]
    return {key.split(",")[0]: value for key, value in results.items() if key.endswith(",none")}, seen


def _reference(checkpoint: Any) -> Any:
    """The class of transformers with the same weights in float32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**checkpoint.config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = {name: tensor.clone() for name, tensor in checkpoint.stream(dtype=torch.float32)}
    missing, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


@torch.inference_mode()
def _scores(model: Any, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    logits = model(torch.tensor([context + continuation])).logits[0, len(context) - 1 : -1].float()
    ids = torch.tensor(continuation)
    picked = logits.log_softmax(-1).gather(1, ids[:, None])
    return float(picked.double().sum()), bool((logits.argmax(-1) == ids).all())


def _accuracy(seen: list[tuple[list[int], list[int], float, bool]], model: Any, rows: list[dict[str, Any]]) -> float:
    """Share of questions whose own ending is likeliest."""
    truth = [_scores(model, context, ids)[0] for context, ids, _, _ in seen]
    right = [max(range(4), key=truth[4 * at : 4 * at + 4].__getitem__) == row["right"] for at, row in enumerate(rows)]
    return sum(right) / len(right)


if __name__ == "__main__":
    print(json.dumps(compare(Path(sys.argv[1]), questions=int(sys.argv[2]) if len(sys.argv) > 2 else 12), indent=1))
