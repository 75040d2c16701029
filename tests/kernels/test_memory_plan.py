"""The plan's bytes are the published ones and those that are really allocated."""

from fractions import Fraction

import pytest
import torch

from support.released import released_config
from support.tiny_checkpoint import make_tiny_checkpoint, tiny_config
from trnrt_kernels.errors import OptionError
from trnrt_kernels.memory_plan import (
    MIN_BUNDLES_PER_SEQ,
    cache_bytes,
    plan_memory,
    table,
    weight_bytes,
)
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
        num_bundle_slots=plan.num_bundle_slots,
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
    assert plan.num_slots == 3 + 4 + shape.num_scratch  # four are computed ahead


def test_budget_limits_pages_and_is_used_up_to_less_than_a_page():
    shape = tiny_shape()
    whole = plan_memory(TINY, shape)
    budget = whole.cache_bytes // 2
    plan = plan_memory(TINY, shape, cache_budget_bytes=budget)
    assert plan.num_pages < whole.num_pages
    assert budget - plan.cache.page < plan.cache_bytes <= budget
    assert plan.num_slots == whole.num_slots


@pytest.mark.parametrize("percent", [40, 60, 85, 99])
@pytest.mark.parametrize("share", [Fraction(1, 3), Fraction(1, 10), Fraction(1, 2)], ids=str)
def test_saved_states_take_their_share_of_a_budget(percent, share):
    shape = tiny_shape()
    whole = plan_memory(TINY, shape, bundle_share=share)
    budget = whole.cache_bytes * percent // 100
    plan = plan_memory(TINY, shape, cache_budget_bytes=budget, bundle_share=share)
    saved = plan.num_bundle_slots * plan.cache.bundle
    assert share * budget - plan.cache.bundle < saved <= share * budget
    assert budget - plan.cache.page < plan.cache_bytes <= budget


def test_without_a_budget_saved_states_take_their_share_beside_all_pages():
    plan = plan_memory(TINY, tiny_shape())
    saved = plan.num_bundle_slots * plan.cache.bundle
    assert plan.num_bundle_slots > MIN_BUNDLES_PER_SEQ * 12
    assert plan.cache_bytes / 3 - plan.cache.bundle < saved <= plan.cache_bytes / 3


def test_every_sequence_has_saved_states_though_they_are_more_than_the_share():
    shape = tiny_shape(max_model_len=128)
    plan = plan_memory(TINY, shape, bundle_share=Fraction(1, 10**6))
    assert plan.num_bundle_slots == MIN_BUNDLES_PER_SEQ * shape.max_num_seqs
    assert plan.num_pages == plan_memory(TINY, shape, bundle_share=Fraction(0)).num_pages


def test_saved_states_never_take_the_pages_of_one_longest_sequence():
    shape = tiny_shape()
    slots = (shape.max_live_seqs + shape.num_scratch, shape.max_pages_per_seq + shape.num_scratch)
    cache = plan_memory(TINY, shape).cache
    least = slots[0] * cache.slot + slots[1] * cache.page
    for num_saved in (0, 1, 5):
        budget = least + num_saved * cache.bundle
        plan = plan_memory(TINY, shape, cache_budget_bytes=budget, bundle_share=Fraction(9, 10))
        assert (plan.num_bundle_slots, plan.num_pages) == (num_saved, slots[1])
    with pytest.raises(OptionError, match="one sequence"):
        plan_memory(TINY, shape, cache_budget_bytes=least - 1)


def test_saved_states_are_at_most_one_per_grid_position():
    shape = tiny_shape(max_model_len=128, max_num_seqs=2)
    plan = plan_memory(TINY, shape, bundle_share=Fraction(99, 100))
    assert plan.num_bundle_slots == 2 * 2
    assert plan_memory(TINY, shape, bundle_share=Fraction(0)).num_bundle_slots == 0


def test_released_budget_is_split_as_documented():
    shape = ServingShape.resolve(
        backend="cpu", dtype="bfloat16", window=1_048_576, index_kpool=RELEASED.index_kpool
    )
    plan = plan_memory(RELEASED, shape, cache_budget_bytes=48 * 2**30)
    assert plan.num_bundle_slots == 48 * 2**30 // 3 // plan.cache.bundle == 116
    assert plan.cache.bundle == 142_606_336 + 5_013_504 + 11 * 3 * 256 * 2


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
