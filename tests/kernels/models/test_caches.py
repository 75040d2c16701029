"""Slots and pages as bytes: copied, viewed and written back bit for bit, all layers."""

from __future__ import annotations

import pytest
import torch

from support.tiny_checkpoint import tiny_config
from trnrt_kernels.models.glm5_next.caches import CacheGeometry, Caches
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig

CONFIG = Glm5NextConfig.from_dict(
    tiny_config(
        layer_types=["linear_attention", *["full_attention"] * 2, "linear_attention"],
        indexer_types=["full", "full", "shared", "full"],
    )
)
GEOMETRY = CacheGeometry(
    num_pages=4, page_size=64, num_state_slots=3, num_scratch=1, num_bundle_slots=2
)
FORMATS = [
    (torch.float32, None),
    (torch.bfloat16, None),
    (torch.bfloat16, torch.float8_e4m3fn),
]
SLOT_CACHES = ("conv_tail", "kda_state", "open_pool")


def noise(dtype: torch.dtype, latent_dtype: torch.dtype | None, seed: int = 0) -> Caches:
    """Caches of random bytes, NaN patterns among them."""
    caches = Caches.allocate(CONFIG, GEOMETRY, dtype=dtype, latent_dtype=latent_dtype)
    generator = torch.Generator().manual_seed(seed)
    for layer in caches.layers:
        for tensor in layer.values():
            codes = torch.randint(256, (tensor.nbytes,), generator=generator, dtype=torch.uint8)
            tensor.view(torch.uint8).copy_(codes.view_as(tensor.view(torch.uint8)))
    return caches


def all_bytes(caches: Caches, index: int, *, is_page: bool) -> list[bytes]:
    """What every layer holds of a page or a slot, found by the tensors' names."""
    return [
        tensor[index].view(torch.uint8).numpy().tobytes()
        for layer in caches.layers
        for name, tensor in layer.items()
        if (name not in SLOT_CACHES) == is_page
    ]


def joined(views: list[torch.Tensor]) -> bytes:
    return b"".join(view.numpy().tobytes() for view in views)


def test_bundle_slots_lie_behind_the_working_ones() -> None:
    caches = Caches.allocate(CONFIG, GEOMETRY, dtype=torch.float32)
    assert (GEOMETRY.first_bundle_slot, GEOMETRY.num_slots) == (3, 5)
    slots = [
        tensor.shape[0]
        for layer in caches.layers
        for n, tensor in layer.items()
        if n in SLOT_CACHES
    ]
    assert slots == [5] * 5
    with pytest.raises(ValueError, match="num_bundle_slots"):
        CacheGeometry(
            num_pages=4, page_size=64, num_state_slots=3, num_scratch=1, num_bundle_slots=-1
        )


@pytest.mark.parametrize(("dtype", "latent_dtype"), FORMATS, ids=str)
def test_copies_are_bitwise_and_touch_nothing_else(
    dtype: torch.dtype, latent_dtype: torch.dtype | None
) -> None:
    caches = noise(dtype, latent_dtype)
    slots = [all_bytes(caches, slot, is_page=False) for slot in range(5)]
    pages = [all_bytes(caches, page, is_page=True) for page in range(4)]
    caches.copy_slot(2, 4)
    caches.copy_page(1, 3)
    assert [all_bytes(caches, s, is_page=False) for s in range(5)] == [*slots[:4], slots[2]]
    assert [all_bytes(caches, p, is_page=True) for p in range(4)] == [*pages[:3], pages[1]]


@pytest.mark.parametrize(("dtype", "latent_dtype"), FORMATS, ids=str)
def test_views_hold_every_byte_in_the_documented_order(
    dtype: torch.dtype, latent_dtype: torch.dtype | None
) -> None:
    caches = noise(dtype, latent_dtype)
    kda, dsa, shared = caches.layers[0], caches.layers[1], caches.layers[2]
    last = caches.layers[3]
    parts = [kda["conv_tail"], kda["kda_state"], last["conv_tail"], last["kda_state"]]
    expected = [part[2].view(torch.uint8).numpy().tobytes() for part in parts]
    grid = caches.slot_views(2, with_open_pool=False)
    assert [view.numpy().tobytes() for view in grid] == expected
    live = joined(caches.slot_views(2, with_open_pool=True))
    open_pool = dsa["open_pool"][2].view(torch.uint8).numpy().tobytes()
    assert live == b"".join(expected) + open_pool
    assert len(joined(grid)) == caches.slot_nbytes(with_open_pool=False)
    assert len(live) == caches.slot_nbytes(with_open_pool=True)
    parts = [dsa["latents"], dsa["pool_keys"], shared["latents"]]
    expected = [part[3].view(torch.uint8).numpy().tobytes() for part in parts]
    views = caches.page_views(3)
    assert [view.numpy().tobytes() for view in views] == expected
    assert len(joined(views)) == caches.page_nbytes
    assert all(view.dtype == torch.uint8 and view.dim() == 1 for view in (*grid, *views))


def test_views_share_memory() -> None:
    caches = noise(torch.bfloat16, None)
    for view in (*caches.slot_views(1, with_open_pool=True), *caches.page_views(2)):
        view.fill_(0)
    assert not any(map(any, all_bytes(caches, 1, is_page=False)))
    assert not any(map(any, all_bytes(caches, 2, is_page=True)))


@pytest.mark.parametrize("with_open_pool", [False, True])
@pytest.mark.parametrize(("dtype", "latent_dtype"), FORMATS, ids=str)
def test_bytes_written_back_are_the_bytes_viewed(
    dtype: torch.dtype, latent_dtype: torch.dtype | None, with_open_pool: bool
) -> None:
    source, target = noise(dtype, latent_dtype), noise(dtype, latent_dtype, seed=1)
    state = joined(source.slot_views(1, with_open_pool=with_open_pool))
    page = joined(source.page_views(1))
    target.fill_slot(4, memoryview(state), with_open_pool=with_open_pool)
    target.fill_page(2, bytearray(page))
    assert joined(target.slot_views(4, with_open_pool=with_open_pool)) == state
    assert joined(target.page_views(2)) == page


def test_bytes_of_another_size_are_refused_before_anything_is_written() -> None:
    caches = noise(torch.float32, None)
    before = all_bytes(caches, 1, is_page=False), all_bytes(caches, 1, is_page=True)
    size = caches.slot_nbytes(with_open_pool=False)
    with pytest.raises(ValueError, match=f"slot 1 takes {size} bytes, got {size - 1}"):
        caches.fill_slot(1, bytes(size - 1), with_open_pool=False)
    with pytest.raises(ValueError, match=f"page 1 takes {caches.page_nbytes} bytes, got 0"):
        caches.fill_page(1, b"")
    assert before == (all_bytes(caches, 1, is_page=False), all_bytes(caches, 1, is_page=True))
