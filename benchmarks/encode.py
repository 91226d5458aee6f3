"""Reading: BERT-base over texts of one length and of many, on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import ours
from benchmarks.decode import BYTES, NO_BF16, REFERENCE
from benchmarks.limits import has_bf16
from benchmarks.results import Goal
from benchmarks.suite import NotMeasured, Race, Round, Setting


def rows(setting: Setting) -> Iterator[Race]:
    """Full texts, then ragged ones."""
    batch, longest = setting.size(32, 4), setting.size(128, 20)
    shortest = setting.size(8, 3)
    draws = torch.Generator().manual_seed(3)
    ragged = torch.randint(shortest, longest + 1, (batch,), generator=draws).tolist()
    goals = {"full": (1.2, 2.2), "ragged": (2.3, 4.1)}
    for name, lengths, what in (
        ("full", [longest] * batch, f"{batch} texts of {longest} tokens"),
        ("ragged", ragged, f"{batch} texts of {shortest} to {longest} tokens"),
    ):
        yield _row(setting, name, lengths, what, goals[name])


def _row(setting: Setting, name: str, lengths: list[int], what: str, goals: tuple[float, float]) -> Race:
    c = ours.config(setting, "bert")
    draws = torch.Generator().manual_seed(4)
    texts = [torch.randint(4, c.vocab_size, (length,), generator=draws) for length in lengths]
    wanted = [Goal("regard fp32", REFERENCE, goals[0])]
    if has_bf16():
        wanted.append(Goal("regard bf16", REFERENCE, goals[1]))
    race = Race("encode", f"BERT-base, encode, {name}", "sentences", len(texts), REFERENCE, wanted, what)
    public = partial(ours.public, setting, "bert")
    flops = bert_flops(c, lengths)

    def mine(precision: str) -> Round:
        return ours.encode(ours.load(public(), setting.device, precision), texts)

    def theirs(dtype: torch.dtype) -> Round:
        from benchmarks.peers import hf

        if dtype is torch.bfloat16 and not has_bf16():
            raise NotMeasured(NO_BF16)
        return hf.encode(hf.load("BertModel", public(), setting.device, dtype), texts)

    def torchs() -> Round:
        from benchmarks.peers import torch_nn

        return torch_nn.encoder(texts, c.vocab_size, c.embed_dim, c.num_heads, c.num_layers, c.mlp_dim)

    def exported(file: str) -> Round:
        from benchmarks.peers import onnx_graph

        return onnx_graph.encode(onnx_graph.session(onnx_bert(setting) / file), texts)

    for precision in BYTES:
        note = NO_BF16 if precision == "bf16" and not has_bf16() else ""
        limit = setting.limits.seconds(flops, 0, precision) if precision in setting.limits.flops else None
        race.ours(f"regard {precision}", partial(mine, precision), limit_s=limit, note=note)
    limit = setting.limits.seconds(flops, 0)
    race.peer(REFERENCE, partial(theirs, torch.float32), limit_s=limit)
    race.peer("transformers bf16", partial(theirs, torch.bfloat16))
    race.peer("torch.nn fast path", torchs, limit_s=limit)
    race.peer("onnxruntime fp32", partial(exported, "model.onnx"), limit_s=limit)
    race.peer("onnxruntime int8", partial(exported, "int8.onnx"))
    return race


def bert_flops(c: object, lengths: list[int]) -> float:
    """Operations of the products over real tokens, attention's among them."""
    width, inner, layers = c.embed_dim, c.mlp_dim, c.num_layers  # type: ignore[attr-defined]
    tokens, pairs = sum(lengths), sum(length**2 for length in lengths)
    return layers * (2 * tokens * (4 * width**2 + 2 * width * inner) + 4 * pairs * width)


def onnx_bert(setting: Setting) -> Path:
    """Give the folder of BERT as onnxruntime reads it."""
    from benchmarks.peers import onnx_graph

    def make(folder: Path) -> None:
        onnx_graph.write_bert(folder, ours.public(setting, "bert"), ours.config(setting, "bert").num_heads)
        onnx_graph.quantize(folder)

    return setting.folder("bert-onnxruntime", make)


def images(setting: Setting) -> Iterator[Race]:
    """ViT-B/16 and Swin-T: classes of pictures."""
    for name, shown, kind, goals in (
        ("vit", "ViT-B/16", "ViTForImageClassification", (1.2, 2.2)),
        ("swin", "Swin-T", "SwinForImageClassification", (1.3, 2.2)),
    ):
        yield _pictures(setting, name, shown, kind, goals)


def _pictures(setting: Setting, name: str, shown: str, kind: str, goals: tuple[float, float]) -> Race:
    batch = setting.size(8, 2)
    size = ours.config(setting, name).image_size
    wanted = [Goal("regard fp32", REFERENCE, goals[0])]
    if has_bf16():
        wanted.append(Goal("regard bf16", REFERENCE, goals[1]))
    what = f"{batch} pictures of {size[0]} × {size[1]}"
    race = Race("images", f"{shown}, classes", "images", batch, REFERENCE, wanted, what)
    pixels_BCYX = torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(6))
    public = partial(ours.public, setting, name)

    def mine(precision: str) -> Round:
        model = ours.load(public(), setting.device, precision)

        def run() -> Tensor:
            with torch.inference_mode():
                return model.head(model.pool(model(pixels_BCYX)))

        return run

    def theirs(dtype: torch.dtype) -> Round:
        from benchmarks.peers import hf

        if dtype is torch.bfloat16 and not has_bf16():
            raise NotMeasured(NO_BF16)
        model = hf.load(kind, public(), setting.device, dtype)
        pixels = pixels_BCYX.to(dtype)

        def run() -> Tensor:
            with torch.inference_mode():
                return model(pixels).logits

        return run

    for precision in BYTES:
        note = NO_BF16 if precision == "bf16" and not has_bf16() else ""
        race.ours(f"regard {precision}", partial(mine, precision), note=note)
    race.peer(REFERENCE, partial(theirs, torch.float32))
    race.peer("transformers bf16", partial(theirs, torch.bfloat16))
    return race
