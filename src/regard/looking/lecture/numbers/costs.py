"""What a layer costs by the length of its input: measured, on the machine that makes the page."""

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.attention import MultiHeadAttention, Segments
from regard.layers.recurrent import Recurrent


class Alive(TorchDispatchMode):
    """Count the bytes of the tensors that operations give, as long as they are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now_bytes = self.peak_bytes = 0
        self.storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in (leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)):
            storage = tensor.untyped_storage()
            if storage not in self.storages:
                self.storages.add(storage)
                self.now_bytes += storage.nbytes()
                self.peak_bytes = max(self.peak_bytes, self.now_bytes)
                weakref.finalize(storage, self.gone, storage.nbytes())
        return result

    def gone(self, num_bytes: int) -> None:
        """Count a storage out."""
        self.now_bytes -= num_bytes


def costs(
    width: int = 128, lengths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096), limit_s: float = 1.5
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run layers forward over one sequence of each length.

    Args:
        width: Width D of every layer.
        lengths: Lengths n in tokens, ascending.
        limit_s: No further length is begun once timed runs took so many seconds; the next one takes four times as long
            at most, where each is twice as long as the one before it.

    Returns:
        seconds and peak_bytes of each layer at each length: the least of up to three times, and the most bytes alive at
        once of what its operations gave; NaN where the limit was passed.
    """
    torch.manual_seed(0)
    recurrent, convolution = Recurrent("gru", width, width), nn.Conv1d(width, width, kernel_size=3, padding=1)
    formula = MultiHeadAttention(width, num_heads=4, backend="reference")
    fused = MultiHeadAttention(width, num_heads=4, backend="dense")
    layers = {"GRU": recurrent, "convolution": convolution, "attention": formula, "attention, fused": fused}
    seconds = {name: torch.full((len(lengths),), torch.nan) for name in layers}
    peak_bytes = {name: torch.full((len(lengths),), torch.nan) for name in layers}
    total_s = 0.0
    for i, length in enumerate(lengths):
        if total_s > limit_s:
            break
        x_ND, sentence = torch.randn(length, width), Segments.uniform(1, length)
        for name, layer in layers.items():
            given = (x_ND.T,) if layer is convolution else (x_ND, sentence)
            with torch.no_grad(), Alive() as alive:
                layer(*given)  # the first run, which is not timed
            spent: list[float] = []
            while len(spent) < 3 and sum(spent) < 0.2:  # one run that takes long says enough
                with torch.no_grad():
                    began = time.perf_counter()
                    layer(*given)
                    spent.append(time.perf_counter() - began)
            seconds[name][i], peak_bytes[name][i] = min(spent), alive.peak_bytes
            total_s += sum(spent)
    return seconds, peak_bytes
