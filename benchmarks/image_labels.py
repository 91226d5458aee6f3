"""How many labels image models need: two tables on Fashion-MNIST, from runs that go on where they were stopped.

1. ViT, Swin and a convolutional network at equal time, with 1 %, 10 % and all of the labels.
2. With 1 % of the labels: a ViT from nothing, and from encoders that were pre-trained on all images without labels
   (masked autoencoder, contrast), each as a linear probe and fine-tuned; mean ± standard deviation over seeds.

    python -m benchmarks.image_labels --out runs/labels                  # everything, one run after the other
    python -m benchmarks.image_labels --out runs/labels --only mae,simclr    # a part of it, for a second core
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import regard

FAMILIES = ("vit", "swin", "convnet")
FRACTIONS = (0.01, 0.1, 1.0)
SEEDS = (1, 2, 3)
PRETRAINED = {"mae": ("reconstruct", "fashion-mae"), "simclr": ("contrast", "fashion-simclr")}


@dataclass(frozen=True)
class Job:
    """One training run.

    Attributes:
        name: Of its folder.
        task: What is trained for.
        recipe: A recipe's name.
        settings: What is changed.
        init: The run that it starts from; empty for none.
    """

    name: str
    task: str
    recipe: str
    settings: dict[str, Any] = field(default_factory=dict)
    init: str = ""


def jobs(seconds: float) -> list[Job]:
    """List all runs, those that others start from first.

    Args:
        seconds: Training time of each run on all labels; those with fewer labels overfit long before, and get half.

    Returns:
        The runs.
    """
    found = [Job(name, task, recipe) for name, (task, recipe) in PRETRAINED.items()]
    for fraction in reversed(FRACTIONS):
        for family in FAMILIES:
            limit = seconds if fraction == 1 else seconds / 2
            settings = {"data.fraction": fraction, "training.max_seconds": limit}
            found.append(Job(f"{family}-{fraction:g}", "classify-images", f"fashion-{family}", settings))
    for seed in SEEDS:
        own = {"data.fraction": min(FRACTIONS), "training.seed": seed}
        found.append(Job(f"labels-none-{seed}", "classify-images", "fashion-few", own))
        for name in PRETRAINED:
            for recipe, more in (("probe", {}), ("few", {"model.drop_path": 0.1})):
                settings = {**own, **more}
                found.append(Job(f"{recipe}-{name}-{seed}", "classify-images", f"fashion-{recipe}", settings, name))
    return found


def run(job: Job, out: Path) -> dict[str, Any]:
    """Train, or take what an earlier call trained."""
    folder = out / job.name
    scores = folder / "scores.json"
    if not scores.exists():
        settings = {**job.settings, **({"init": str(out / job.init)} if job.init else {})}
        regard.train(job.task, out=folder, recipe_name=job.recipe, settings=settings)
    return json.loads(scores.read_text("utf-8"))


def tables(scores: dict[str, dict[str, Any]]) -> str:
    """Write both tables from the runs that are there."""
    lines = ["| labels | " + " | ".join(FAMILIES) + " | nearest neighbours |", "| --- " * (len(FAMILIES) + 2) + "|"]
    for fraction in FRACTIONS:
        row = [scores.get(f"{family}-{fraction:g}") for family in FAMILIES]
        known = next((one for one in row if one), None)
        near = [v["accuracy"] for n, v in known["baselines"].items() if "neighbour" in n] if known else []
        cells = ["–" if one is None else f"{100 * one['accuracy']:.2f} ({one['steps']:,} steps)" for one in row]
        lines.append(
            f"| {fraction:.0%} | {' | '.join(cells)} | {100 * near[0]:.2f} |" if near else f"| {fraction:.0%} |"
        )
    lines += ["", "| start | linear probe | fine-tuned |", "| --- | --- | --- |"]
    for name in ("none", *PRETRAINED):
        cells = []
        for kind in ("probe", "few"):
            names = [f"labels-none-{seed}" if name == "none" else f"{kind}-{name}-{seed}" for seed in SEEDS]
            found = [100 * scores[one]["accuracy"] for one in names if one in scores]
            spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
            shown = f"{statistics.mean(found):.2f}{spread} ({len(found)})" if found else "–"
            cells.append("" if (name, kind) == ("none", "probe") else shown)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is asked for, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--only", default="", help="beginnings of names, with commas between")
    parser.add_argument("--tables", action="store_true", help="train nothing; print what is there")
    given = parser.parse_args()
    wanted = tuple(given.only.split(",")) if given.only else ("",)
    every = jobs(given.seconds)
    for job in every:
        if not given.tables and job.name.startswith(wanted):
            print(f"== {job.name}", flush=True)
            run(job, given.out)
    paths = {job.name: given.out / job.name / "scores.json" for job in every}
    print(tables({name: json.loads(path.read_text("utf-8")) for name, path in paths.items() if path.exists()}))


if __name__ == "__main__":
    main()
