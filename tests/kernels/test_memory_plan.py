"""The plan's bytes are the published ones and those that are really allocated."""

import pytest
import torch

from support.released import released_config
from support.tiny_checkpoint import make_tiny_checkpoint, tiny_config
from trnrt_kernels.errors import OptionError
from trnrt_kernels.memory_plan import cache_bytes, plan_memory, table, weight_bytes
from trnrt_kernels.models.glm5_next.caches import CacheGeometry, Caches
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.weights import load_weights
from trnrt_kernels.sampling import SamplingState
from trnrt_kernels.serving import ServingShape

RELEASED = Glm5NextConfig.from_dict(released_config())
TINY = Glm5NextConfig.from_dict(tiny_config())


def tiny_shape(dtype="bfloat16", **changes):
    settings = {"window": TINY.max_position_embeddings, "index_kpool": TINY.index_kpool}
    return ServingShape.resolve(backend="cpu", dtype=dtype, **settings | changes)


def test_released_weights_sum_to_the_published_bytes():
    found = weight_bytes(RELEASED, dtype=None)
    assert sum(found.values()) == 319_706_118_392
    assert found["experts"] == 304_480_124_928
    assert found["kda"] == 9_366_356_992
    assert found["mhc"] == 70_788_600


def test_released_caches_have_the_published_bytes():
    bf16 = cache_bytes(RELEASED, page_size=256, dtype="bfloat16")
    fp8 = cache_bytes(RELEASED, page_size=256, dtype="bfloat16", latent_dtype="float8_e4m3fn")
    assert bf16.latents_per_page == 256 * 11_264
    assert fp8.latents_per_page == 256 * 5_632
    assert bf16.index_keys_per_page == fp8.index_keys_per_page == 256 * 704
    assert bf16.states_per_slot == 142_606_336
    assert bf16.conv_tails_per_slot == 5_013_504
    assert bf16.open_pools_per_slot == 11 * 3 * 256 * 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("latent_dtype", [None, "float8_e4m3fn"])
def test_planned_cache_is_what_is_allocated(dtype, latent_dtype):
    plan = plan_memory(TINY, tiny_shape(dtype), latent_dtype=latent_dtype)
    geometry = CacheGeometry(
        num_pages=plan.num_pages,
        page_size=plan.page_size,
        num_state_slots=plan.num_slots,
        num_scratch=plan.num_scratch,
    )
    latents = None if latent_dtype is None else getattr(torch, latent_dtype)
    caches = Caches.allocate(TINY, geometry, dtype=getattr(torch, dtype), latent_dtype=latents)
    sampling = SamplingState.allocate(plan.num_slots, TINY.vocab_size)
    sampling_bytes = sum(tensor.nbytes for tensor in sampling)
    assert plan.cache_bytes == caches.num_bytes + sampling_bytes


def test_shared_indexer_layers_keep_no_index_keys():
    raw = tiny_config(
        layer_types=["linear_attention", *["full_attention"] * 2, "linear_attention"],
        indexer_types=["full", "full", "shared", "full"],
    )
    config = Glm5NextConfig.from_dict(raw)
    found = cache_bytes(config, page_size=64, dtype="float32")
    geometry = CacheGeometry(num_pages=3, page_size=64, num_state_slots=2, num_scratch=1)
    caches = Caches.allocate(config, geometry, dtype=torch.float32)
    sampling = 2 * found.sampling_per_slot
    assert caches.num_bytes == 3 * found.page + 2 * found.slot - sampling


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_planned_weights_are_what_is_loaded(tmp_path, dtype):
    make_tiny_checkpoint(tmp_path)
    weights = load_weights(tmp_path, TINY, dtype=dtype)
    loaded = sum(tensor.nbytes for _, tensor in weights.items())
    assert plan_memory(TINY, tiny_shape(dtype)).weight_bytes == loaded


def test_without_a_budget_every_sequence_can_reach_the_longest_length():
    shape = tiny_shape(max_num_seqs=3)
    plan = plan_memory(TINY, shape)
    assert (plan.num_pages - plan.num_scratch) * plan.page_size == 3 * shape.max_model_len
    assert plan.num_slots == 3 + shape.num_scratch


def test_budget_limits_pages_and_is_used_up_to_less_than_a_page():
    shape = tiny_shape()
    whole = plan_memory(TINY, shape)
    budget = whole.cache_bytes // 2
    plan = plan_memory(TINY, shape, cache_budget_bytes=budget)
    assert budget - plan.cache.page < plan.cache_bytes <= budget
    assert plan.num_slots == whole.num_slots


def test_budget_above_the_need_is_not_used_up():
    shape = tiny_shape()
    assert plan_memory(TINY, shape, cache_budget_bytes=2**40) == plan_memory(TINY, shape)


def test_budget_too_small_for_one_sequence_is_refused():
    with pytest.raises(OptionError, match=r"one sequence of 4096 tokens.*--cache-gib"):
        plan_memory(TINY, tiny_shape(), cache_budget_bytes=1000)


def test_rows_sum_to_the_total():
    plan = plan_memory(TINY, tiny_shape())
    assert sum(size for _, size in plan.rows) == plan.total_bytes
    assert f"{plan.total_bytes:,}" in table(plan.rows).splitlines()[-1]
