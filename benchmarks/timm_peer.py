"""timm's ViT and Swin beside ours: from timm's own random start, through the folder that timm writes, and back.

In float64 every block's output, the last norm's and the scores (or pooled vectors) have to agree to 1e-10; in float32
they may be off by twice timm's own error, and 1e-7 more. Then timm has to load the folder that we write, and hold the
same bytes.

    make parity
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # everything is on this disk

import argparse
import copy
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import save_for_hf
from torch import Tensor, nn

from regard.models.public import read_folder, write_folder

BOUND = 1e-10
SMALL_VIT = {"img_size": [48, 48], "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 4}
SMALL_SWIN = {"patch_size": 2, "embed_dim": 16, "depths": [2, 3, 1], "num_heads": [2, 4, 2], "window_size": 4}
WIDE_SWIN = {"patch_size": 4, "embed_dim": 16, "depths": [2, 2, 2, 2], "num_heads": [2, 2, 4, 4], "window_size": 7}
VIT, SWIN = "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"
# What is special, the architecture, what is said of it, its head.
CASES: dict[str, list[tuple[str, str, dict[str, Any], dict[str, Any]]]] = {
    "vit": [
        ("as it is", VIT, {}, {"num_classes": 10}),
        ("small, class token", VIT, SMALL_VIT, {"num_classes": 7}),
        ("small, 32 × 56 pixels", VIT, {**SMALL_VIT, "img_size": [32, 56]}, {"num_classes": 7}),
        ("small, mean of patches", VIT, {**SMALL_VIT, "global_pool": "avg"}, {"num_classes": 7}),
        (
            "small, no class token, mean",
            VIT,
            {**SMALL_VIT, "global_pool": "avg", "class_token": False},
            {"num_classes": 7},
        ),
        (
            "small, mean of normed patches",
            VIT,
            {**SMALL_VIT, "global_pool": "avg", "fc_norm": False},
            {"num_classes": 7},
        ),
        ("small, no head", VIT, SMALL_VIT, {"num_classes": 0}),
        ("small, one channel, narrow MLPs", VIT, {**SMALL_VIT, "mlp_ratio": 1.5}, {"num_classes": 7, "in_chans": 1}),
    ],
    "swin": [
        ("as it is", SWIN, {}, {"num_classes": 10}),
        ("windows of each stage", "swin_s3_tiny_224", {}, {"num_classes": 10}),
        ("small", SWIN, {**SMALL_SWIN, "img_size": [32, 32]}, {"num_classes": 7}),
        ("small, 64 × 32 pixels", SWIN, {**SMALL_SWIN, "img_size": [64, 32]}, {"num_classes": 7}),
        ("small, windows fill up every grid", SWIN, {**SMALL_SWIN, "img_size": [44, 58]}, {"num_classes": 7}),
        ("wide, 232 × 260 pixels", SWIN, {**WIDE_SWIN, "img_size": [232, 260]}, {"num_classes": 7}),
        ("wide, windows shrink with the grid", SWIN, {**WIDE_SWIN, "img_size": [128, 128]}, {"num_classes": 7}),
        ("small, no head", SWIN, {**SMALL_SWIN, "img_size": [32, 32]}, {"num_classes": 0}),
        (
            "small, one channel, narrow MLPs",
            SWIN,
            {**SMALL_SWIN, "img_size": [32, 32], "mlp_ratio": 2.5},
            {"num_classes": 7, "in_chans": 1},
        ),
    ],
}


def blocks_of_vit(theirs: nn.Module) -> list[nn.Module]:
    return [*theirs.blocks]


def blocks_of_swin(theirs: nn.Module) -> list[nn.Module]:
    return [block for stage in theirs.layers for block in stage.blocks]


def seen_by(
    model: nn.Module, blocks: list[nn.Module], pixels: Tensor, end: Callable[[Tensor], list[Tensor]]
) -> list[Tensor]:
    """What every block gives out, a row a token, and what comes at the end."""
    seen: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, out: seen.append(out)) for block in blocks]
    with torch.inference_mode():
        last = end(pixels.to(next(model.parameters()).dtype))
    for hook in hooks:
        hook.remove()
    return [layer.reshape(-1, layer.shape[-1]) for layer in (*seen, *last)]


def of_theirs(family: str, theirs: nn.Module, pixels: Tensor) -> list[Tensor]:
    def end(pixels: Tensor) -> list[Tensor]:
        features = theirs.forward_features(pixels)
        return [features, theirs.forward_head(features)]

    blocks = {"vit": blocks_of_vit, "swin": blocks_of_swin}[family](theirs)
    return seen_by(theirs, blocks, pixels, end)


def of_ours(ours: Any, pixels: Tensor) -> list[Tensor]:
    def end(pixels: Tensor) -> list[Tensor]:
        features = ours(pixels)
        pooled_BD = ours.pool(features)
        return [features.hidden_ND, pooled_BD if ours.head is None else ours.head(pooled_BD)]

    stages = getattr(ours, "stages", [ours])
    return seen_by(ours, [block for stage in stages for block in stage.blocks], pixels, end)


def moved(theirs: nn.Module) -> nn.Module:
    """Moved so far from its start that biases, norms and tables matter."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return theirs.eval()


def worst(one: list[Tensor], other: list[Tensor]) -> list[float]:
    if [layer.shape for layer in one] != [layer.shape for layer in other]:
        raise SystemExit(f"shapes differ: {[[*a.shape] for a in one]} and {[[*b.shape] for b in other]}")
    return [float((a.double() - b.double()).abs().max()) for a, b in zip(one, other, strict=True)]


def compare(family: str, architecture: str, args: dict[str, Any], head: dict[str, Any]) -> tuple[list[Any], bool]:
    """One case: its numbers, and whether they are within the bounds."""
    theirs = moved(timm.create_model(architecture, **args, **head))
    height, width = theirs.patch_embed.img_size
    draws = torch.Generator().manual_seed(1)
    pixels = torch.randn(4, head.get("in_chans", 3), height, width, generator=draws, dtype=torch.float64)
    exactly = copy.deepcopy(theirs).double()
    with tempfile.TemporaryDirectory() as folder:
        save_for_hf(theirs, folder, model_args=args, safe_serialization=True)
        known, ours, _ = read_folder(Path(folder))
    exact = of_theirs(family, exactly, pixels)
    far = max(worst(of_ours(copy.deepcopy(ours).double().eval(), pixels), exact))
    mine, error = worst(of_ours(ours.eval(), pixels), exact), worst(of_theirs(family, theirs, pixels), exact)
    times = max(m / max(e, 1e-9) for m, e in zip(mine, error, strict=True))
    close = all(m <= 2 * e + 1e-7 for m, e in zip(mine, error, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), known, ours, form="timm")
        back = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    state, wanted = back.state_dict(), theirs.state_dict()
    same = state.keys() == wanted.keys() and all(
        state[key].numpy().tobytes() == wanted[key].numpy().tobytes() for key in wanted
    )
    with torch.inference_mode():
        same = same and torch.equal(back(pixels.float()), theirs(pixels.float()))
    passed = known == family and far <= BOUND and close and same
    count = sum(parameter.numel() for parameter in theirs.parameters())
    row = [f"{height} × {width}", f"{count:,}", len(exact), f"{far:.1e}", f"{max(error):.1e}", f"{times:.2f}"]
    return [*row, "same bytes" if same else "DIFFERS"], passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("families", nargs="*", default=sorted(CASES), help="vit, swin; both where none is named")
    named = parser.parse_args().families
    print(f"timm {timm.__version__}, torch {torch.__version__}\n")
    columns = ("family", "case", "pixels", "parameters", "outputs", "float64", "float32, timm", "ours ×", "back", "")
    rows = [columns]
    good = True
    logging.getLogger("timm").setLevel(logging.ERROR)  # it tells of means and deviations that it has set
    for family in named:
        for what, architecture, args, head in CASES[family]:
            numbers, passed = compare(family, architecture, args, head)
            rows.append((family, what, *map(str, numbers), "" if passed else "FAILED"))
            good = good and passed
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
