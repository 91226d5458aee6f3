"""The plain model that a good engineer would write: what a library has to be worth its layers beside.

Padded rectangles, one projection for queries, keys and values, torch's own attention; nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PlainBlock(nn.Module):
    """x ← x + attention(norm(x)); x ← x + MLP(norm(x))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x_BTD)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(y.transpose(1, 2).flatten(2))
        return x_BTD + self.down(F.gelu(self.up(self.norm2(x_BTD)), approximate="tanh"))


class PlainGPT(nn.Module):
    """GPT-2, from tokens to the mean loss; the vocabulary is rounded up to a multiple of 64."""

    def __init__(self, vocab_size: int, max_len: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(-(-vocab_size // 64) * 64, width)
        self.places = nn.Embedding(max_len, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.blocks = nn.ModuleList(PlainBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD = self.tokens(ids_BT) + self.places.weight[: ids_BT.shape[1]]
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits = F.linear(self.norm(x_BTD), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), ids_BT.flatten())


def decode_step(
    settings: Any, batch: int, device: torch.device, dtype: torch.dtype, compiled: Any
) -> Callable[[], Any]:
    """Give the bare step of decoding: fixed shapes, compiled, in a CUDA graph; no search, no sampling, no end.

    Args:
        settings: Of our GPT-2.
        batch: Rows.
        device: Where; without CUDA there is no graph.
        dtype: Of weights and cache.
        compiled: ``torch.compile`` with its options.

    Returns:
        A step, which writes one token a row.
    """
    width, heads, length = settings.embed_dim, settings.num_heads, settings.max_len
    model = PlainGPT(settings.vocab_size, length, width, heads, settings.num_layers).to(device, dtype)
    shape = (batch, heads, length, width // heads)
    caches = [[torch.zeros(shape, device=device, dtype=dtype) for _ in "kv"] for _ in model.blocks]
    token_B1 = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    place = torch.tensor([length // 8], device=device)
    seen = torch.arange(length, device=device)[None, None, None] <= place

    @torch.no_grad()
    def step() -> Tensor:
        x = model.tokens(token_B1) + model.places(place)
        for block, (keys, values) in zip(model.blocks, caches, strict=True):
            q, k, v = block.qkv(block.norm1(x)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            keys.index_copy_(2, place, k)
            values.index_copy_(2, place, v)
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            x = x + block.out(y.transpose(1, 2).flatten(2))
            x = x + block.down(F.gelu(block.up(block.norm2(x)), approximate="tanh"))
        token_B1.copy_(F.linear(model.norm(x), model.tokens.weight).argmax(-1))
        return token_B1

    quick = compiled(step)
    if device.type != "cuda":
        return quick
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            quick()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        quick()
    return graph.replay
