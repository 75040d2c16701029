"""The shipped folder: complete, small, and the model the training code describes."""

import json
import random
from itertools import islice

import pytest
import torch
from tokenizers import Tokenizer

from support.demo_training import TRAINING_DIR, import_path

import_path()
from demo_training.batches import batches  # noqa: E402
from demo_training.export import dequantise, load_released, quantise  # noqa: E402
from demo_training.optimizer import orthogonalise  # noqa: E402
from demo_training.render import (  # noqa: E402
    MODEL_DIR,
    ChatFormat,
    encode_sample,
    split_targets,
)
from demo_training.shape import ModelShape, to_config, to_generation_config  # noqa: E402
from demo_training.tokenizer import ADDED_TOKENS, VOCAB_SIZE  # noqa: E402
from safetensors import safe_open  # noqa: E402

from trnrt_engine.verify_golden import Sequence  # noqa: E402
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig  # noqa: E402
from trnrt_kernels.models.glm5_next.model import Model  # noqa: E402
from trnrt_kernels.models.glm5_next.weights import load_weights  # noqa: E402

MAX_BYTES = 10_000_000
# Two float32 implementations with other orders of summation; logits reach about 30.
LOGIT_TOLERANCE = 5e-3
FILES = (
    "README.md",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


def test_folder_is_complete_and_small():
    names = {path.name for path in MODEL_DIR.iterdir() if path.is_file()}
    assert set(FILES) <= names
    assert sum(path.stat().st_size for path in MODEL_DIR.iterdir() if path.is_file()) <= MAX_BYTES


def test_config_files_are_what_the_training_code_writes():
    shape = ModelShape()
    assert json.loads((MODEL_DIR / "config.json").read_text("utf-8")) == to_config(shape)
    written = json.loads((MODEL_DIR / "generation_config.json").read_text("utf-8"))
    assert written == to_generation_config()


def test_architecture_is_the_released_one_in_miniature():
    config = Glm5NextConfig.from_dir(MODEL_DIR)
    kinds = [kind.value for kind in config.layer_types]
    assert kinds == ["kda", "kda", "kda", "dsa"] * 2
    assert {kind.value for kind in config.mlp_layer_types} == {"dense", "sparse"}
    assert (config.index_kpool, config.hc_mult, config.hc_sinkhorn_iters) == (4, 4, 20)
    assert config.index_topk * 8 <= config.max_position_embeddings


def test_added_tokens_are_spelled_as_released_and_end_the_vocabulary(tokenizer):
    ids = [tokenizer.token_to_id(token) for token in ADDED_TOKENS]
    assert ids == list(range(VOCAB_SIZE - len(ADDED_TOKENS), VOCAB_SIZE))
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    think = tokenizer.token_to_id("<think>")
    assert tokenizer.decode([think], skip_special_tokens=True) == "<think>"


def test_any_text_survives_the_tokenizer(tokenizer):
    text = 'Grüße, 世界! 12:30\n\t{"a": [1, 2.5]} \U0001f600  end '
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("word", ["lighthouse", "accordion", "Mirela", "breezy"])
def test_a_value_has_the_same_tokens_wherever_it_stands(tokenizer, word):
    alone = tokenizer.encode(word).ids
    for text in (f"I like {word}.", f'{{"{word}": 1}}', f"<arg_value>{word}</arg_value>"):
        ids = tokenizer.encode(text).ids
        assert any(ids[i : i + len(alone)] == alone for i in range(len(ids))), text


def test_file_dtypes_are_the_released_ones():
    with safe_open(MODEL_DIR / "model.safetensors", "pt") as file:
        dtypes = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    layer = "model.language_model.layers."
    for name, dtype in dtypes.items():
        if f"{name}_scale_inv" in dtypes:
            assert dtype == "F8_E4M3", name
    assert dtypes[f"{layer}3.self_attn.q_b_proj.weight"] == "F8_E4M3"
    assert dtypes[f"{layer}2.mlp.experts.7.down_proj.weight"] == "F8_E4M3"
    assert dtypes[f"{layer}0.mlp.gate_proj.weight"] == "F8_E4M3"
    assert dtypes[f"{layer}0.self_attn.q_proj.weight"] == "BF16"
    assert dtypes[f"{layer}3.self_attn.kv_b_proj.weight"] == "BF16"
    assert dtypes[f"{layer}0.self_attn.A_log"] == "F32"
    assert dtypes[f"{layer}2.mlp.gate.e_score_correction_bias"] == "F32"


def test_training_model_and_served_model_agree_on_the_shipped_weights():
    torch.manual_seed(5)
    num_tokens = 272  # more than index_topk, so that selection drops tokens
    ids = torch.randint(0, VOCAB_SIZE - len(ADDED_TOKENS), (num_tokens,))
    trained = load_released(MODEL_DIR, ModelShape())
    with torch.no_grad():
        hidden, _ = trained(ids[None])
        expected = trained.logits(hidden)
        config = Glm5NextConfig.from_dir(MODEL_DIR)
        served = Model(config, load_weights(MODEL_DIR, config, dtype="float32"))
        logits = Sequence(served, num_tokens).prefill(ids).logits
    torch.testing.assert_close(logits, expected, atol=LOGIT_TOLERANCE, rtol=1e-3)


def test_block_quantisation_is_within_half_a_step():
    torch.manual_seed(1)
    weight = torch.randn(200, 130) * torch.logspace(-3, 0, 200)[:, None]
    codes, scales = quantise(weight)
    assert scales.shape == (2, 2)
    error = (dequantise(codes, scales) - weight).abs()
    step = torch.maximum(weight.abs() / 16, scales.max() * 2**-9 * torch.ones_like(weight))
    assert (error <= step * 1.001).all()


def test_targets_are_the_assistants_words_and_its_end_token():
    chat = ChatFormat()
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "t"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    text = chat.render(messages) + "<|user|>"
    pieces = split_targets(text, learns_history=True)
    assert "".join(piece for piece, _ in pieces) == text
    assert [piece for piece, is_target in pieces if is_target] == [
        "t</think>b<|user|>",
        "</think>d<|user|>",
    ]
    last_only = split_targets(text, learns_history=False)
    assert [piece for piece, is_target in last_only if is_target] == ["</think>d<|user|>"]


def test_batches_keep_their_budget_and_repeat_by_seed():
    budget = 2048
    drawn = list(islice(batches(3, budget), 12))
    for ids, weights in drawn:
        length = ids.shape[1] - 1
        assert length % 16 == 0
        assert len(ids) == 1 or len(ids) * length <= budget
        assert ids.shape == weights.shape
        assert (weights.sum(1) > 0).all()
    again = next(batches(3, budget))
    assert torch.equal(again[0], drawn[0][0])


def test_orthogonalised_updates_have_singular_values_near_one():
    torch.manual_seed(2)
    for size in ((64, 128), (128, 64)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(3, *size)))
        assert values.min() > 0.3
        assert values.max() < 1.4


def test_prompt_values_survive_the_tokenizer(tokenizer):
    document = json.loads((TRAINING_DIR / "prompts.json").read_text("utf-8"))
    values = document["held_out"]["values"]
    random.Random(0).shuffle(values)
    for value in values:
        assert tokenizer.decode(tokenizer.encode(value).ids) == value


def test_encoded_sample_weighs_answers_over_context(tokenizer):
    from demo_training.exchange import Sample

    sample = Sample([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}])
    ids, weights = encode_sample(sample, ChatFormat(), tokenizer)
    assert len(ids) == len(weights)
    answer = [i for i, weight in zip(ids, weights, strict=True) if weight == 1]
    assert tokenizer.decode(answer, skip_special_tokens=False) == "</think>Hello!<|user|>"
