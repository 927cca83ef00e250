"""Architectures that are not ours run through transformers' classes and our pages, or are refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.errors import CheckpointError, LoadError, UnsupportedModelError
from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.model import foreign
from octavo.engine.model.base import CausalModel
from octavo.engine.model.foreign import build_foreign, check_foreign, why_not_foreign
from octavo.engine.request import SamplingParams

pytestmark = pytest.mark.skipif(
    tuple(map(int, tf.__version__.split(".")[:2])) < foreign.OLDEST_TRANSFORMERS, reason="needs transformers 5.24"
)
SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OWN = {key: value for key, value in SIZES.items() if key.endswith("token_id") or key == "vocab_size"}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 32}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


def configs() -> dict[str, Any]:
    """Windows shorter than the prompt; positions by rotation and by table; experts; scaled scores; tied heads."""
    alternating = ["sliding_attention", "full_attention", "sliding_attention"]
    return {
        "starcoder2": tf.Starcoder2Config(**SIZES, sliding_window=7),
        "cohere2": tf.Cohere2Config(**SIZES, sliding_window=5, layer_types=alternating, logit_scale=0.3),
        "glm4": tf.Glm4Config(**SIZES, head_dim=8),
        "olmo-yarn": tf.OlmoConfig(**SIZES, rope_parameters=YARN, clip_qkv=1.5),
        "gpt2": tf.GPT2Config(**OWN, n_embd=48, n_layer=3, n_head=6, n_positions=128),
        "gpt_neox": tf.GPTNeoXConfig(**{k: v for k, v in SIZES.items() if k != "num_key_value_heads"}),
        "opt": tf.OPTConfig(
            **OWN,
            hidden_size=48,
            ffn_dim=56,
            num_hidden_layers=3,
            num_attention_heads=6,
            max_position_embeddings=128,
            word_embed_proj_dim=32,
        ),
        "exaone4": tf.Exaone4Config(**SIZES, sliding_window=6, layer_types=alternating),
        "olmoe": tf.OlmoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2),
    }


def load(path: Path, **options: Any) -> CausalModel:
    settings = {"device": "cpu", "dtype": torch.float32, "context_length": 64} | options
    with open_checkpoint(path) as checkpoint:
        return build_foreign(checkpoint, **settings)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    tf.logging.set_verbosity_error()
    yield
    tf.logging.set_verbosity_warning()


@pytest.mark.parametrize("name", configs())
def test_scores_in_a_changing_batch_and_in_chunks_equal_the_classs_own(name: str, saved, paged) -> None:
    reference = saved(configs()[name])
    model = load(reference.path)
    generator = torch.Generator().manual_seed(5)
    long, short, late = (torch.randint(3, 101, (n,), generator=generator).tolist() for n in (23, 9, 14))
    run = paged(model)
    parts = {0: [], 1: [], 2: []}

    def step(rows: dict[int, list[int]]) -> None:
        scores = run.forward(rows)
        begin = 0
        for row, tokens in sorted(rows.items(), key=lambda item: len(item[1]) != 1):
            parts[row].append(scores[begin : begin + len(tokens)])
            begin += len(tokens)

    step({0: long[:10]})
    step({0: long[10:17], 1: short[:8]})
    step({0: long[17:18], 1: short[8:], 2: late[:6]})
    step({0: long[18:], 2: late[6:7]})
    step({2: late[7:]})
    for row, tokens in enumerate((long, short, late)):
        torch.testing.assert_close(torch.cat(parts[row]), reference.logits(tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("paged_attention", "speculation"), [(True, "self"), (False, "off")])
def test_the_whole_engine_says_what_transformers_says(paged_attention: bool, speculation: str, saved) -> None:
    """Windows shorter than the chats, two at once, and a third that begins like the first. That such a model cannot
    guess with its first layers is said and changes nothing else."""
    reference = saved(configs()["cohere2"])
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(101)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tf.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(reference.path)
    config = EngineConfig(
        device="cpu",
        dtype="float32",
        context_length=64,
        page_size=4,
        kv_memory_bytes=4 << 20,
        prefill_chunk=8,
        paged_attention=paged_attention,
        speculation=speculation,
    )
    prompts = [list(range(20, 41)), [9, 80, 7], [*range(20, 36), 3]]
    greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    engine = Engine.load(reference.path, config)
    refused = [notice for notice in engine.info.notices if "speculation.mode is self" in notice]
    assert len(refused) == (speculation == "self")
    assert all(notice.endswith("Choose another speculation.mode.") for notice in refused)
    try:
        handles = [engine.submit(prompt, greedy) for prompt in prompts[:2]]
        got = [handle.result().token_ids for handle in handles]
        got.append(engine.submit(prompts[2], greedy).result().token_ids)
    finally:
        engine.close()
    for prompt, ids in zip(prompts, got):
        scores = reference.logits([*prompt, *ids])
        assert list(ids) == scores[len(prompt) - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize("name", ["cohere2", "gpt2"])
def test_what_the_runner_reads_of_a_model_is_there(name: str, saved) -> None:
    reference = saved(configs()[name])
    model = load(reference.path)
    assert model.architecture == type(reference.model).__name__
    assert model.vocab_size == 101
    assert model.max_positions == 128
    assert model.capturable is False
    assert model.weight_bytes == sum(p.nbytes for p in reference.model.parameters())
    assert sorted(layer for group in model.cache_groups for layer in group.layers) == [0, 1, 2]
    if name == "cohere2":
        assert [group.window for group in model.cache_groups] == [5, None]
        assert [spec.window for spec in model.attn_specs] == [5, None, 5]


def test_a_tied_head_shares_the_embeddings_storage(saved) -> None:
    model = load(saved(configs()["cohere2"]).path)
    inner = model._model
    assert inner.lm_head.weight.data_ptr() == inner.model.embed_tokens.weight.data_ptr()


def test_bfloat16_weights_stay_bfloat16_and_frequencies_do_not(saved) -> None:
    model = load(saved(configs()["glm4"]).path, dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert {p.dtype for p in model._model.parameters()} == {torch.bfloat16}
    assert model._model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_dynamic_frequencies_are_those_of_the_context_length_in_every_batch(saved, paged) -> None:
    config = tf.OlmoConfig(**SIZES | {"max_position_embeddings": 16}, rope_parameters=DYNAMIC)
    reference = saved(config)
    model = load(reference.path, context_length=48)
    ids = torch.randint(3, 101, (48,), generator=torch.Generator().manual_seed(2)).tolist()
    wanted = reference.logits(ids)  # as long as the context: transformers takes the same frequencies
    run = paged(model)
    first = run.forward({0: ids[:9]})
    rest = run.forward({0: ids[9:]})
    torch.testing.assert_close(torch.cat((first, rest)), wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(paged(model).forward({0: ids[:9]}), first)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (lambda: tf.MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2), "recurrent state"),
        (lambda: tf.JambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2), "recurrent state"),
        (lambda: tf.MptConfig(vocab_size=50, d_model=16, n_layers=2, n_heads=2), "ALiBi"),
        (lambda: tf.BloomConfig(vocab_size=50, hidden_size=16, n_layer=2, n_head=2), "attention"),
        (lambda: tf.T5Config(vocab_size=50, d_model=16, num_layers=2, num_heads=2), "encoder"),
        (lambda: tf.ViTConfig(), "no causal language model"),
        (lambda: tf.GPT2Config(add_cross_attention=True), "encoder"),
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence(config: Callable[[], Any], words: str) -> None:
    reason = why_not_foreign(config().to_dict())
    assert words in reason
    assert reason.endswith(".")
    assert "\n" not in reason


def test_a_refusal_names_the_architectures_that_run(tmp_path: Path) -> None:
    config = tf.MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1)
    tf.MambaForCausalLM(config).save_pretrained(tmp_path)
    with (
        open_checkpoint(tmp_path) as checkpoint,
        pytest.raises(UnsupportedModelError, match=r"state.*llama.*qwen3_moe"),
    ):
        check_foreign(checkpoint)


def test_code_of_a_checkpoint_is_never_run() -> None:
    config = {"model_type": "homegrown", "auto_map": {"AutoModelForCausalLM": "modeling.Homegrown"}}
    assert "code of its own" in why_not_foreign(config)
    assert "does not know" in why_not_foreign({"model_type": "homegrown"})


def test_another_tasks_checkpoint_is_refused() -> None:
    config = configs()["glm4"].to_dict() | {"architectures": ["Glm4ForSequenceClassification"]}
    assert "Glm4ForSequenceClassification" in why_not_foreign(config)


def test_a_quantized_checkpoint_is_refused_by_its_method() -> None:
    assert "awq" in why_not_foreign(configs()["glm4"].to_dict() | {"quantization_config": {"quant_method": "awq"}})


def test_an_old_transformers_is_named(monkeypatch) -> None:
    config = configs()["glm4"].to_dict()
    monkeypatch.setattr("transformers.__version__", "5.17.2")
    assert "needs transformers 5.24" in why_not_foreign(config)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (lambda: tf.GptOssConfig(**SIZES, head_dim=8, num_local_experts=4), "s_aux"),
        (lambda: tf.DeepseekV3Config(**SIZES, n_routed_experts=4, n_group=1, topk_group=1), "other keys"),
    ],
)
def test_attention_that_asks_for_more_is_refused_before_a_weight_is_read(
    config, words: str, saved, monkeypatch
) -> None:
    reference = saved(config())
    with open_checkpoint(reference.path) as checkpoint:
        monkeypatch.setattr(type(checkpoint), "stream", lambda *_: pytest.fail("a weight was read"))
        with pytest.raises(UnsupportedModelError, match=words):
            build_foreign(checkpoint, device="cpu", dtype=torch.float32, context_length=64)


def test_attention_that_comes_out_different_is_refused(saved, monkeypatch) -> None:
    """The last guard: a class that does something to its attention which no argument shows."""
    reference = saved(configs()["glm4"])
    read = foreign._try_attention

    def wrong(model: Any) -> Any:
        from dataclasses import replace

        return tuple(replace(spec, scale=spec.scale * 3) for spec in read(model))

    monkeypatch.setattr(foreign, "_try_attention", wrong)
    with pytest.raises(UnsupportedModelError, match="does not reproduce"):
        load(reference.path)


def edit(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("name", "tensor", "change"),
    [
        ("glm4", "model.layers.1.mlp.down_proj.weight", lambda t, n: t.pop(n)),
        ("glm4", "model.layers.1.self_attn.surprise", lambda t, n: t.update({n: torch.zeros(2)})),
        ("glm4", "model.norm.weight", lambda t, n: t.update({n: torch.zeros(7)})),
        ("olmoe", "model.layers.2.mlp.experts.3.up_proj.weight", lambda t, n: t.pop(n)),
    ],
)
def test_a_missing_unknown_or_misshapen_tensor_is_named(name: str, tensor: str, change, saved) -> None:
    path = saved(configs()[name]).path
    edit(path, lambda tensors: change(tensors, tensor))
    with pytest.raises(LoadError) as caught:
        load(path)
    if name != "olmoe":  # whether a layer has all its experts shows when they are put together
        with open_checkpoint(path) as checkpoint, pytest.raises(CheckpointError):
            check_foreign(checkpoint)
    assert isinstance(caught.value, CheckpointError)
    assert tensor.split(".experts")[0] in str(caught.value) or tensor == caught.value.tensor


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("starcoder2", "model.layers.1.self_attn.q_proj.weight"),
        ("olmoe", "model.layers.0.mlp.experts.2.up_proj.weight"),
    ],
)
@pytest.mark.parametrize("stored", [torch.int8, torch.uint8, torch.int64, torch.bool])
def test_whole_numbers_are_not_taken_for_weights(name: str, tensor: str, stored: torch.dtype, saved) -> None:
    path = saved(configs()[name]).path
    edit(path, lambda tensors: tensors.update({tensor: tensors[tensor].mul(100).to(stored)}))
    with open_checkpoint(path) as checkpoint, pytest.raises(CheckpointError, match="in whole numbers") as caught:
        check_foreign(checkpoint)
    assert caught.value.tensor == tensor
    assert caught.value.file == str(path / "model.safetensors")
    assert "bfloat16" in str(caught.value)


def test_names_without_the_decoders_prefix_and_saved_frequencies_are_understood(saved, paged) -> None:
    reference = saved(configs()["gpt2"])
    edit(
        reference.path,
        lambda tensors: [
            tensors.update({"h.0.attn.bias": torch.ones(1, 1, 4, 4)}),
            [tensors.update({key.removeprefix("transformer."): tensors.pop(key)}) for key in list(tensors)],
        ],
    )
    ids = list(range(5, 17))
    torch.testing.assert_close(
        paged(load(reference.path)).forward({0: ids}), reference.logits(ids), atol=1e-4, rtol=1e-4
    )


def test_a_configuration_transformers_rejects_is_one_sentence(saved) -> None:
    path = saved(configs()["glm4"]).path
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = "three"
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UnsupportedModelError) as caught:
        load(path)
    assert "num_hidden_layers" in caught.value.message
    assert "\n" not in caught.value.message
    assert why_not_foreign(config) == caught.value.message


def test_a_setting_its_class_does_not_know_is_one_sentence(saved) -> None:
    path = saved(configs()["glm4"]).path
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps(config | {"hidden_act": "wiggle"}), encoding="utf-8")
    with pytest.raises(UnsupportedModelError, match="wiggle") as caught:
        load(path)
    assert "\n" not in caught.value.message
