"""The demo model as a differentiable torch module, written for training on a CPU.

It shares no code with the served model: tests compare the two on the shipped weights.
"""

import torch
from torch import Tensor, nn

from demo_training.feed_forward import FeedForward, MixtureOfExperts, Router
from demo_training.hyper_connection import HyperConnection, mhc_mix, mhc_weights
from demo_training.linear_attention import LinearAttention
from demo_training.norm import RMSNorm
from demo_training.shape import ModelShape
from demo_training.sparse_attention import SparseAttention

HEAD_FROM_EMBEDDING = 0.3


class Layer(nn.Module):
    def __init__(self, shape: ModelShape, index: int) -> None:
        super().__init__()
        self.shape = shape
        self.attn_hc = HyperConnection(shape)
        self.ffn_hc = HyperConnection(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.self_attn: LinearAttention | SparseAttention
        self.self_attn = SparseAttention(shape) if shape.is_dsa(index) else LinearAttention(shape)
        self.mlp: FeedForward | MixtureOfExperts
        is_dense = shape.is_dense(index)
        self.mlp = (
            FeedForward(shape, shape.intermediate_size) if is_dense else MixtureOfExperts(shape)
        )


class DemoModel(nn.Module):
    """Attributes:
    sinkhorn_steps: iterations of the mHC normalisation; fewer while training, 20 when served.
    is_sparse: whether DSA layers read only what the indexer picks.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, index) for index in range(shape.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.sinkhorn_steps = shape.sinkhorn_steps
        self.is_sparse = True
        self._initialise()

    def _initialise(self) -> None:
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        # A copied token must come out of the head it came in by. Starting from the embedding, and
        # from attention that copies, saves the long plateau before copying is found.
        with torch.no_grad():
            self.lm_head.weight.copy_(self.embed_tokens.weight * HEAD_FROM_EMBEDDING)
        for layer in self.blocks():
            layer.self_attn.start_as_copier()

    def blocks(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def routers(self) -> list[Router]:
        return [module for module in self.modules() if isinstance(module, Router)]

    def forward(self, ids_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Final hidden states [B * T, D] and the sum of the indexers' losses.

        T is a multiple of 16; padding stands on the right and needs no mask.
        """
        batch, length = ids_BT.shape
        embedded = self.embed_tokens(ids_BT.flatten())
        streams = embedded[:, None].expand(-1, self.shape.streams, -1).contiguous()
        indexer_loss = embedded.new_zeros(())
        for layer in self.blocks():
            x, post, comb = self._collapse(streams, layer.attn_hc)
            x = layer.input_layernorm(x).view(batch, length, -1)
            if isinstance(layer.self_attn, SparseAttention):
                y, loss = layer.self_attn(x, is_sparse=self.is_sparse)
                indexer_loss = indexer_loss + loss
            else:
                y = layer.self_attn(x)
            streams = mhc_mix(y.flatten(0, 1), streams, post, comb)
            x, post, comb = self._collapse(streams, layer.ffn_hc)
            y = layer.mlp(layer.post_attention_layernorm(x))
            streams = mhc_mix(y, streams, post, comb)
        return self.norm(streams.mean(1)), indexer_loss

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(hidden)
        return logits

    def _collapse(self, streams: Tensor, hc: HyperConnection) -> tuple[Tensor, Tensor, Tensor]:
        pre, post, comb = mhc_weights(
            streams,
            hc.fn,
            hc.base,
            hc.scale,
            sinkhorn_steps=self.sinkhorn_steps,
            hc_eps=self.shape.hc_eps,
            norm_eps=self.shape.norm_eps,
        )
        return (pre @ streams).squeeze(1), post, comb
