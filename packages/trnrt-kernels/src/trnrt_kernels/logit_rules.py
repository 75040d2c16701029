"""How a request's settings change its logits and cut its distribution.

Shapes: B rows, V vocabulary, N stop ids.
"""

from __future__ import annotations

import torch
from torch import Tensor


def apply_repetition(logits_BV: Tensor, seen_BV: Tensor, penalty_B: Tensor) -> Tensor:
    """Divide positive and multiply negative logits of tokens seen in prompt or output."""
    penalty_B1 = penalty_B[:, None]
    penalised_BV = torch.where(logits_BV > 0, logits_BV / penalty_B1, logits_BV * penalty_B1)
    return torch.where(seen_BV, penalised_BV, logits_BV)


def apply_presence_and_frequency(
    logits_BV: Tensor, output_counts_BV: Tensor, presence_B: Tensor, frequency_B: Tensor
) -> Tensor:
    """Subtract OpenAI's penalties; only generated tokens count, not the prompt's."""
    frequency_BV = output_counts_BV.to(logits_BV.dtype) * frequency_B[:, None]
    presence_BV = (output_counts_BV > 0).to(logits_BV.dtype) * presence_B[:, None]
    return logits_BV - frequency_BV - presence_BV


def ban_stop_ids(logits_BV: Tensor, stop_ids_BN: Tensor, is_banned_B: Tensor) -> Tensor:
    """Set stop ids to -inf in the rows that must not end yet; -1 pads the list of ids."""
    num_rows, vocab_size = logits_BV.shape
    # padding falls into an extra column that is cut off
    columns_BN = torch.where(stop_ids_BN < 0, vocab_size, stop_ids_BN)
    hits = torch.zeros(num_rows, vocab_size + 1, dtype=torch.bool, device=logits_BV.device)
    is_stop_BV = hits.scatter(1, columns_BN, True)[:, :vocab_size]
    return logits_BV.masked_fill(is_stop_BV & is_banned_B[:, None], float("-inf"))


def keep_mask(probs_BV: Tensor, *, top_k_B: Tensor, top_p_B: Tensor, min_p_B: Tensor) -> Tensor:
    """Which ranks of a descending distribution may be drawn; always a prefix, never empty.

    Args:
        probs_BV: probabilities by rank, likeliest first.
        top_k_B: ranks kept; 0 keeps all.
        top_p_B: keep the fewest ranks whose mass, relative to what top-k kept, reaches it.
        min_p_B: keep ranks with at least this share of the likeliest one's probability.
    """
    vocab_size = probs_BV.shape[1]
    rank_V = torch.arange(vocab_size, device=probs_BV.device)
    limit_B = torch.where(top_k_B > 0, top_k_B, vocab_size)
    in_top_k_BV = rank_V < limit_B[:, None]
    kept_probs_BV = torch.where(in_top_k_BV, probs_BV, 0.0)
    mass_BV = kept_probs_BV.cumsum(dim=1)
    mass_before_BV = torch.nn.functional.pad(mass_BV[:, :-1], (1, 0))
    wanted_B = top_p_B * mass_BV[:, -1]
    in_top_p_BV = (mass_before_BV < wanted_B[:, None]) | (top_p_B >= 1.0)[:, None]
    in_min_p_BV = probs_BV >= (min_p_B * probs_BV[:, 0])[:, None]
    can_be_drawn_BV = (probs_BV > 0) & in_top_k_BV & in_top_p_BV & in_min_p_BV
    return can_be_drawn_BV | (rank_V == 0)
