"""MAE's encoder: a step (forward and backward) on the visible quarter of the tokens, against one on all of them.

The same encoder, images and precision; one step of each in turn, so that a machine's moods meet both alike.

    OMP_NUM_THREADS=1 python -m benchmarks.mae_encoder                   # ViT-B/16 on 224 × 224
    OMP_NUM_THREADS=1 python -m benchmarks.mae_encoder --dim 256 --layers 6 --heads 4 --images 16 --image 64 --patch 8
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time

import torch
from torch import Tensor

from regard.models.mae import Mae, MaeConfig


def step(model: Mae, pixels_BCYX: Tensor, visible_BT: Tensor | None) -> float:
    """Time one forward and backward pass of the encoder, in seconds."""
    start = time.perf_counter()
    model.encoder(pixels_BCYX, visible_BT).hidden_ND.square().mean().backward()
    took = time.perf_counter() - start
    model.zero_grad(set_to_none=True)
    return took


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("dim", 768), ("layers", 12), ("heads", 12), ("image", 224), ("patch", 16)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    config = MaeConfig(
        image_size=(given.image, given.image),
        patch_size=given.patch,
        embed_dim=given.dim,
        num_layers=given.layers,
        num_heads=given.heads,
        mlp_dim=4 * given.dim,
    )
    model = Mae(config).train()
    pixels_BCYX = torch.randn(given.images, 3, given.image, given.image)
    rows, columns = model.patches(pixels_BCYX)
    visible_BT, _ = model.choose(torch.rand(given.images, rows * columns))
    taken: dict[str, list[float]] = {"visible": [], "full": []}
    for turn in range(given.rounds + 1):
        for name, places_BT in (("visible", visible_BT), ("full", None)):
            took = step(model, pixels_BCYX, places_BT)
            if turn:  # the first warms up
                taken[name].append(took)
    ratios = sorted(full / visible for full, visible in zip(taken["full"], taken["visible"], strict=True))
    said = {
        "tokens": {"full": rows * columns + 1, "visible": visible_BT.shape[1] + 1},
        "median_s": {name: round(statistics.median(times), 4) for name, times in taken.items()},
        "full_over_visible": round(statistics.median(ratios), 2),
        "range": [round(ratios[0], 2), round(ratios[-1], 2)],
        "threads": given.threads,
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
    }
    print(json.dumps(vars(given) | said))


if __name__ == "__main__":
    main()
