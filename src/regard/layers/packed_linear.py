"""Linear layers whose weights were laid out once, for use on a CPU: float32, bfloat16 or int8.

When a model writes one token after another, reading its weights is the limit. Here they are read from one end to the
other by few streams, and in fewer bytes where that is asked for:

========== ====== ========================= ==================================================================
precision  bytes  weights                   products
========== ====== ========================= ==================================================================
fp32       4      as they are               float32
bf16       2      rounded to bfloat16       float32, of inputs that are rounded to bfloat16 too
int8       1      rounded to 255 steps for  exact in integers: inputs have levels steps on each side, at least
                  each output               11 bits and 15 at most, of their row's greatest magnitude
========== ====== ========================= ==================================================================

An int8 product is y[o] = float32(Σ_i q_x[i] q_w[o, i]) · s_w[o] · s_x + b[o] with

    s_w[o] = max_i |w[o, i]| / 127,       q_w[o, i] = round(w[o, i] · (127 / max_i |w[o, i]|)),
    s_x    = max_i |x[i]| / levels,       q_x[i]    = round(x[i] · (levels / max_i |x[i]|)),

halves to even, levels = min(32,767, ⌊(2³¹ − 1) / (127 · inputs)⌋), the most with which no sum can leave 32 bits. A row
depends on itself alone, never on those beside it. A row of inputs with a number that is not finite gives NaN.

Our own kernels and PyTorch's products compute the same integers; all else agrees up to float32's rounding of sums, and
numbers below float32's least normal one, which some processors take for zero in bf16.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from regard.errors import UsageError
from regard.kernels import native
from regard.kernels.calls import Matrix
from regard.kernels.native import Kernel, choose

Precision = Literal["fp32", "bf16", "int8"]

PANEL = 16  # outputs that stand side by side; the kernels' number
_CHUNK = 4096  # outputs that are rounded or widened at once
_KINDS: dict[str, int] = {"fp32": 0, "bf16": 1, "int8": 2}
_ACTS = {"": 0, "relu": 1, "gelu-tanh": 2, "gelu-quick": 3, "silu": 4, "gelu": 5}
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}


class PackedLinear(nn.Module):
    """y = f(x Wᵀ + b) with a packed W; it has neither parameters nor a state, and no gradient goes through it.

    Args:
        weight_OI: float32, the weights W.
        bias_O: float32; None for none.
        precision: Of the weights.
        kernel: Our own kernels; None for PyTorch's products.

    Attributes:
        in_features: Width of an input.
        out_features: Width of an output.
        precision: Of the weights.
        activation: Name of f; empty where there is none.
        error: Greatest error of a few random rows' products, relative to the greatest of these; 0 for fp32.
    """

    def __init__(
        self, weight_OI: Tensor, bias_O: Tensor | None, precision: Precision, kernel: Kernel | None = None
    ) -> None:
        super().__init__()
        self.training = False
        self.out_features, self.in_features = weight_OI.shape
        self.precision: Precision = precision
        self.kernel = kernel
        self.activation = ""
        # Plain attributes: neither parameters nor buffers, so that no optimizer, no file and no .to() takes them.
        self.bias_O = None if bias_O is None else bias_O.detach().clone()
        self.scales_O = torch.empty(self.out_features) if precision == "int8" else None
        weight_OI = weight_OI.detach().float()
        if kernel is None:
            self.weights = torch.zeros(self.out_features, self.in_features, dtype=_DTYPES[precision])
            self._fill(weight_OI)
        else:
            panels = -(-self.out_features // PANEL)
            bytes_of_panel = kernel.bytes_of_panel(_KINDS[precision], self.in_features)
            self.weights = native.room(panels * bytes_of_panel, kernel).view(panels, -1)
            self._bind()
            kernel.pack(self._at, weight_OI.data_ptr(), *weight_OI.stride(), native.threads(), native.team())
        self.error = 0.0 if precision == "fp32" else self._measured(weight_OI)

    @torch.no_grad()
    def _measured(self, weight_OI: Tensor) -> float:
        """Compare products of a few rows, drawn from a normal distribution, with those of the weights as they were."""
        x_NI = torch.randn(4, self.in_features, generator=torch.Generator().manual_seed(0))
        exact_NO = nn.functional.linear(x_NI, weight_OI, None if self.bias_O is None else self.bias_O)
        most = float(exact_NO.abs().max())
        return float((self(x_NI) - exact_NO).abs().max()) / most if most else 0.0

    def _fill(self, weight_OI: Tensor) -> None:
        """Round the weights, some outputs at a time; they stay in the order in which they are."""
        for first in range(0, self.out_features, _CHUNK):
            some_OI = weight_OI[first : first + _CHUNK]
            if self.scales_O is not None:
                most_O1 = some_OI.abs().amax(1, keepdim=True)
                self.scales_O[first : first + _CHUNK] = most_O1[:, 0] / 127.0
                steps = (some_OI * (torch.full_like(most_O1, 127.0) / most_O1)).round()
                some_OI = torch.nan_to_num(steps, 0.0, 0.0, 0.0)
            self.weights[first : first + _CHUNK] = some_OI

    def _bind(self) -> None:
        """Tell the kernels where everything lies."""
        if self.kernel is None:
            return
        places = (None if one is None else one.data_ptr() for one in (self.weights, self.scales_O, self.bias_O))
        self._matrix = Matrix(
            _KINDS[self.precision],
            self.out_features,
            self.in_features,
            _ACTS[self.activation],
            levels(self.in_features),
            *places,
        )
        self._call, self._at = self.kernel.linear, ctypes.addressof(self._matrix)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply.

        Args:
            x: float32 on the CPU, (…, in_features).

        Returns:
            y, (…, out_features).

        Raises:
            UsageError: x is of another dtype, device or width, or a gradient is to go through it.
        """
        if not x.is_cpu or x.dtype is not torch.float32 or x.shape[-1] != self.in_features:
            what = f"x {tuple(x.shape)}, {x.dtype} on {x.device}, for packed weights of {self.in_features} inputs"
            raise UsageError(what, where="PackedLinear", mend="give float32 on the CPU")
        if x.requires_grad and torch.is_grad_enabled():
            raise UsageError("a gradient through packed weights", where="PackedLinear", mend="use the plain model")
        if self.kernel is None:
            return self._by_torch(x)
        stride = x.stride(0) if x.dim() == 2 and x.stride(1) == 1 else 0
        if stride < self.in_features:
            x, stride = x.contiguous(), self.in_features
        y = x.new_empty((*x.shape[:-1], self.out_features))
        rows = math.prod(x.shape[:-1])
        self._call(self._at, x.data_ptr(), rows, stride, y.data_ptr(), native.threads(), native.team())
        return y

    def _by_torch(self, x: Tensor) -> Tensor:
        weight_OI = self.weights
        if self.precision == "fp32":
            return nn.functional.linear(x, weight_OI, self.bias_O)
        if self.scales_O is None:
            x = x.bfloat16().float()
            y = torch.cat([nn.functional.linear(x, part.float()) for part in weight_OI.split(_CHUNK)], -1)
        else:
            most = x.abs().amax(-1, keepdim=True)
            most = torch.where(most.isfinite(), most, torch.nan)
            scale = most / float(levels(self.in_features))
            scale = torch.where(scale < torch.finfo(torch.float32).tiny, 0.0, scale)
            steps = x * (torch.full_like(most, float(levels(self.in_features))) / most)
            whole = torch.where(scale > 0, steps.round(), 0.0).double()
            # Sums of whole numbers below 2³¹ are exact in float64.
            sums = torch.cat([nn.functional.linear(whole, part.double()) for part in weight_OI.split(_CHUNK)], -1)
            y = sums.float() * self.scales_O * scale
        return y if self.bias_O is None else y + self.bias_O

    @property
    def address(self) -> int:
        """Where our own kernels find what they need to know of the layer, as long as it lives."""
        return self._at

    def activated(self, activation: str) -> bool:
        """Apply an activation to the outputs while they are at hand.

        Args:
            activation: Its name in :data:`regard.layers.mlp.ACTIVATIONS`.

        Returns:
            Whether the kernels have it; else nothing changes.
        """
        if self.kernel is None or not _ACTS.get(activation) or self.activation:
            return False
        self.activation = activation
        self._matrix.act = _ACTS[activation]  # in place: others may hold its address
        return True

    def part(self, first: int, count: int) -> PackedLinear | None:
        """Give some outputs as a layer of their own, on the same memory.

        Args:
            first: The first of them.
            count: How many.

        Returns:
            The layer; None where they do not stand at a panel's begin.
        """
        if self.kernel is not None and first % PANEL:
            return None
        part = PackedLinear.__new__(PackedLinear)
        nn.Module.__init__(part)
        part.training = False
        part.in_features, part.out_features = self.in_features, count
        part.precision, part.kernel, part.error = self.precision, self.kernel, self.error
        part.activation = self.activation
        part.bias_O = None if self.bias_O is None else self.bias_O[first : first + count]
        part.scales_O = None if self.scales_O is None else self.scales_O[first : first + count]
        each = 1 if self.kernel is None else PANEL
        part.weights = self.weights[first // each : -(-(first + count) // each)]
        part._bind()
        return part

    def train(self, mode: bool = True) -> Self:
        if mode:
            raise UsageError("packed weights cannot be trained", where="PackedLinear", mend="load the plain model")
        return super().train(mode)

    def extra_repr(self) -> str:
        path = "torch" if self.kernel is None else "native"
        return f"{self.in_features}, {self.out_features}, bias={self.bias_O is not None}, {self.precision}, {path}"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        mend = "save the plain model"
        raise UsageError("packed weights cannot be saved", where=prefix.rstrip(".") or "PackedLinear", mend=mend)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what points into this process's memory; copies of models are made through here."""
        hidden = {"_matrix", "_call", "_at", "kernel"}
        own = None if self.kernel is None else bool(self.kernel.multiplies())
        return {key: value for key, value in self.__dict__.items() if key not in hidden} | {"own": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = state.pop("own")
        self.__dict__.update(state)
        self.kernel = None if own is None else choose("native")
        if self.kernel is not None and self.precision != "fp32" and self.kernel.multiplies() != own:
            what = f"{self.precision} weights that were laid out for another processor"
            raise UsageError(what, where="PackedLinear", mend="pack the plain model here")
        self._bind()


def levels(inputs: int) -> int:
    """Say in how many steps, on each side of zero, an int8 product takes its inputs.

    Args:
        inputs: Width of an input.

    Returns:
        The greatest number with which no sum leaves 32 bits, 32,767 at most.

    Example:
        >>> levels(768), levels(3072)
        (22017, 5504)
    """
    return min(32767, (2**31 - 1) // (127 * max(inputs, 1)))
