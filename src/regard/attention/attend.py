"""The one function through which every model attends."""

from __future__ import annotations

from typing import Literal, cast, get_args

import torch
from torch import Tensor

from regard.attention import recording, silencing
from regard.attention.backends import dense, flex, reference, static, varlen
from regard.attention.compiling import eagerly
from regard.attention.masks import Mask
from regard.attention.positions import Bias, TensorBias
from regard.attention.scores import Additive, DotScore, ScaledDot, Score
from regard.attention.segments import Segments
from regard.attention.sites import Site
from regard.errors import BackendError, UsageError

Backend = Literal["reference", "dense", "varlen", "flex", "static"]

_SCALED_DOT = ScaledDot()


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_segments: Segments | None = None,
    k_segments: Segments | None = None,
    *,
    mask: Mask | None = None,
    bias: Bias | Tensor | None = None,
    score: Score | None = None,
    dropout_p: float = 0.0,
    backend: Backend | None = None,
    site: Site | None = None,
) -> Tensor:
    """Attend: scores from queries and keys, weights by softmax over a sequence's keys, a weighted sum of values.

    E = score(Q, K) + bias;  A = softmax(E over the allowed keys);  Y = dropout(A) V

    Every row of A sums to 1. A query with no key to attend to gives zeros and passes no gradient, on every backend.

    The backend, where none is chosen:

    ============ ======== ================ =================================== ==========
    segments     device   dtype            mask, bias, score, dropout          backend
    ============ ======== ================ =================================== ==========
    any          any      any              score that is no dot product        reference¹
    slots        any      any              dot product                         static
    uniform      any      any              dot product                         dense
    ragged       cpu      any but float16  dot product                         dense
    ragged       cuda     bf16, fp16       causal, window or none; no bias,    varlen
                                           no dropout
    ragged       cuda     any              other masks, bias; no dropout       flex
    ragged       cuda     any              dropout                             dense
    ============ ======== ================ =================================== ==========

    ¹ On a CPU an additive score in float32, with a band as mask and no bias, goes to our own kernel where it attends.

    Args:
        q: q_NHK, queries of the whole batch in one row; or, without segments, dense (…, T, H, K).
        k: k_MGK, keys, G dividing H: query heads h · H/G … (h + 1) · H/G − 1 share key head h; or dense (…, S, G, K).
        v: v_MGK, values; their head size may differ from the keys' on ``reference``, ``dense`` and ``static``.
        q_segments: Which queries belong together; None for dense tensors.
        k_segments: Which keys do; as many sequences. None is ``q_segments``.
        mask: Which keys of its sequence a query may attend to; None is all of them. See :mod:`regard.attention.masks`.
        bias: Added to the scores: a tensor (T, S), (H, T, S) or (B, H, T, S), or a
            :class:`~regard.attention.positions.Bias`.
        score: The similarity function; None is scaled dot product.
        dropout_p: Probability that a weight is dropped; 0 outside training.
        backend: Which kernel; None chooses by the table above. A request that a backend cannot serve raises: it never
            falls back to something slow or wrong.
        site: The module that attends, for recording and silencing.

    Returns:
        context_NHK (or dense), in the values' dtype.

    Raises:
        UsageError: Shapes, dtypes, devices or segments do not fit each other.
        BackendError: The chosen backend cannot serve the request.

    Source: Vaswani et al. 2017, §3.2.1, equation 1; Bahdanau et al. 2015, §3.1.
    """
    if q_segments is None:
        return _attend_dense(q, k, v, mask, bias, score, dropout_p, backend, site)
    k_segments = q_segments if k_segments is None else k_segments
    bias = TensorBias(bias) if isinstance(bias, Tensor) else bias
    _check(q, k, v, q_segments, k_segments, dropout_p)
    _check_cover(q, q_segments, k_segments, mask, bias)
    score = _SCALED_DOT if score is None else score
    is_free = backend is None
    if backend is None:
        backend = _choose(q, v, q_segments, k_segments, mask, bias, score, dropout_p)
    else:
        _refuse(backend, q, v, q_segments, k_segments, mask, bias, score, dropout_p)
    forms = q_segments.form, k_segments.form
    recording.offer(site, q, k, q_segments, k_segments, mask, bias, score)
    if is_free and type(score) is Additive and bias is None and not (score._forward_hooks or score._forward_pre_hooks):
        found = dense.ask(q, k, v, q_segments, k_segments, mask, dropout_p=dropout_p, v_HK=score.v_HK)
        if found is not None:
            return silencing.heard(site, found)
    if backend == "reference":
        run = eagerly(reference.run) if "ragged" in forms else reference.run
        return silencing.heard(site, run(q, k, v, q_segments, k_segments, mask, bias, score, dropout_p))
    run = {"dense": dense, "static": static, "varlen": varlen, "flex": flex}[backend].run
    # Groups of like lengths are as many as the batch says: no graph would serve the next batch.
    run = eagerly(run) if backend == "dense" and "ragged" in forms else run
    context = run(q, k, v, q_segments, k_segments, mask, bias, cast(DotScore, score), dropout_p)
    return silencing.heard(site, context)


def _attend_dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    bias: Bias | Tensor | None,
    score: Score | None,
    dropout_p: float,
    backend: Backend | None,
    site: Site | None,
) -> Tensor:
    """See dense tensors with leading batch dimensions as a uniform batch."""
    leading = q.shape[:-3]
    if min(q.dim(), k.dim(), v.dim()) < 3 or k.shape[:-3] != leading or v.shape[:-3] != leading:
        raise UsageError(
            f"dense q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}",
            where="attend",
            mend="give (…, tokens, heads, head size) with the same leading dimensions, or segments",
        )
    count = leading.numel()
    q_segments = Segments.uniform(count, q.shape[-3], q.device)
    k_segments = q_segments if k.shape[-3] == q.shape[-3] else Segments.uniform(count, k.shape[-3], q.device)
    out = attend(
        q.reshape(-1, *q.shape[-2:]),
        k.reshape(-1, *k.shape[-2:]),
        v.reshape(-1, *v.shape[-2:]),
        q_segments,
        k_segments,
        mask=mask,
        bias=bias,
        score=score,
        dropout_p=dropout_p,
        backend=backend,
        site=site,
    )
    return out.reshape(*leading, q.shape[-3], *out.shape[1:])


def _check(q: Tensor, k: Tensor, v: Tensor, q_segments: Segments, k_segments: Segments, dropout_p: float) -> None:
    """Refuse tensors and segments that do not fit each other."""
    what = None
    if not q.dim() == k.dim() == v.dim() == 3:
        what = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} are not all (rows, heads, head size)"
    elif k.shape[:2] != v.shape[:2]:
        what = f"k {tuple(k.shape)} and v {tuple(v.shape)} differ in rows or heads"
    elif q.shape[2] != k.shape[2]:
        what = f"queries of head size {q.shape[2]} and keys of {k.shape[2]}"
    elif k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        what = f"{q.shape[1]} query heads cannot share {k.shape[1]} key-value heads"
    elif not q.dtype == k.dtype == v.dtype:
        what = f"dtypes differ: q {q.dtype}, k {k.dtype}, v {v.dtype}"
    elif not q.device == k.device == v.device == q_segments.lengths_B.device == k_segments.lengths_B.device:
        what = "q, k, v and segments are on different devices"
    elif q.dtype == torch.float16 and q.device.type == "cpu":
        what = "float16 on CPU is forty times slower than float32; use float32 or bfloat16"
    elif len(q_segments) != len(k_segments):
        what = f"{len(q_segments)} sequences of queries and {len(k_segments)} of keys"
    elif q_segments.form == "slots":
        what = "queries in slots; queries are uniform or ragged"
    elif k_segments.form == "slots" and q_segments.form != "uniform":
        what = "ragged queries into slots; give each slot the same number of queries"
    elif not 0.0 <= dropout_p < 1.0:
        what = f"dropout_p is {dropout_p}, not in [0, 1)"
    else:
        for name, rows, segments in (("q", q, q_segments), ("k", k, k_segments)):
            if rows.shape[0] != segments.num_rows:
                what = f"{name} has {rows.shape[0]} rows, its segments {segments.num_rows}"
    if what:
        raise UsageError(what, where="attend")


def _check_cover(q: Tensor, q_segments: Segments, k_segments: Segments, mask: Mask | None, bias: Bias | None) -> None:
    """Refuse masks and biases that do not cover the batch."""
    if isinstance(mask, Tensor):
        raise UsageError("the mask is a tensor", where="attend", mend="give masks.tensor(…), True = may attend")
    if (mask is None and bias is None) or torch.compiler.is_compiling():
        return
    queries, keys = (
        # What is known without waiting for the device; counting the rows of ragged ones has fetched their lengths
        # already.
        max((s.known_lengths or ()) if s.form == "slots" else s.lengths, default=0)
        for s in (q_segments, k_segments)
    )
    for given in (mask, bias):
        if given is not None:
            given.check(len(q_segments), q.shape[1], queries, keys)


def _choose(
    q: Tensor,
    v: Tensor,
    q_segments: Segments,
    k_segments: Segments,
    mask: Mask | None,
    bias: Bias | None,
    score: Score,
    dropout_p: float,
) -> Backend:
    """Choose by the table in attend's docstring."""
    if not isinstance(score, DotScore):
        return "reference"
    if k_segments.form == "slots":
        return "static"
    if not q.is_cuda or dropout_p or q_segments.form == k_segments.form == "uniform":
        return "dense"
    return "flex" if varlen.refusal(q, v, mask, bias, score, dropout_p) else "varlen"


def _refuse(
    backend: str,
    q: Tensor,
    v: Tensor,
    q_segments: Segments,
    k_segments: Segments,
    mask: Mask | None,
    bias: Bias | None,
    score: Score,
    dropout_p: float,
) -> None:
    """Raise where the chosen backend cannot serve the request."""
    why = None
    if backend not in get_args(Backend):
        raise UsageError(
            f"unknown backend {backend!r}", where="attend", mend=f"choose from {', '.join(get_args(Backend))}"
        )
    if backend != "reference" and not isinstance(score, DotScore):
        why = "it takes dot-product scores only"
    elif (backend == "static") != (k_segments.form == "slots") and backend != "reference":
        why = f"keys in slots go to static or reference, other keys not to static; these are {k_segments.form}"
    elif backend == "varlen":
        why = varlen.refusal(q, v, mask, bias, score, dropout_p)
    elif backend == "flex":
        why = flex.refusal(q, score, dropout_p)
    if why:
        raise BackendError(f"backend {backend}: {why}", where="attend", mend="leave backend out, or use reference")
