"""What a run's report shows of images: maps and pictures of the first test images, and what the task has drawn."""

import re
from pathlib import Path

import pytest
import torch
from seeing_examples import MiniViT, Product, a_picture, to_pixels

from regard.looking import png
from regard.looking.seeing import look_at_image
from regard.metrics.measure import Measure
from regard.tasks.task import Evaluated
from regard.training import recipe, report
from regard.training.loop import Standing
from regard.training.report import Facts


class Classes:
    """As much of a task as the report reads."""

    monitor, unit, reads, lengths = "accuracy", "image", "image", ()


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    return Facts("digits", "regard train", "now", "here", "9 images", [], log)


def evaluated(images: int) -> Evaluated:
    names, wanted, got = ["a.png", "b.png", "c.png", "d.png"], [["7"], ["1"], ["7"], ["2"]], ["7", "7", "7", "2"]
    shown = tuple(torch.tensor(a_picture(20 + 4 * i, 28)).permute(2, 0, 1) for i in range(images))
    return Evaluated({"accuracy": Measure("accuracy", 0.75, "")}, names, wanted, got, images=shown)


def page(product: Product, scored: Evaluated, facts: Facts, figures=()) -> str:
    resolved = recipe.resolve(recipe.read("letters-to-sounds"))
    return report.page(resolved, Classes(), product, scored, {}, {}, Standing(2, 1.0, 9), [2], facts, figures)


def test_the_first_test_images_are_looked_at(facts: Facts) -> None:
    product = Product()
    shown = page(product, evaluated(4), facts).split("<h2>Where it looked</h2>")[1]
    assert re.findall(r"<h3><bdi>(.*?)</bdi></h3>", shown) == ["a.png", "b.png", "c.png"]
    assert re.findall(r"→ <bdi>(.*?)</bdi>", shown) == ["7", "7", "7"]
    assert re.findall(r'viewBox="0 0 (\d+) (\d+)" preserve', shown) == [
        (str(7), str(rows)) for rows in (5, 6, 7) for _ in ("rollout", "last layer")
    ]
    second = a_picture(24, 28)
    last = look_at_image(product.model, to_pixels(second), second, "b.png", "7").maps[1].mean().weights_HTS[0, 0, 1:]
    opacities = [float(one) for one in re.findall(r'fill-opacity="([\d.]+)" x="\d+" y="\d+" width="1"', shown)]
    start = 2 * 35 + 42  # after two grids of 5 × 7 and the rollout of the second image
    assert opacities[start : start + 42] == pytest.approx(last / last.max(), abs=6e-4)


def test_samples_show_their_images(facts: Facts) -> None:
    shown = page(Product(), evaluated(2), facts)
    assert re.findall('<img class="thumb sharp" src="([^"]*)" alt="(.*?)">', shown) == [
        (png.address(png.png(a_picture(20 + 4 * i, 28))), name) for i, name in enumerate(["a.png", "b.png"])
    ]
    assert shown.count('data-name="Source"') == 4


def test_without_images_there_is_nothing_to_look_at(facts: Facts) -> None:
    shown = page(Product(), evaluated(0), facts)
    assert "Where it looked" not in shown
    assert "<th>Picture</th>" not in shown
    blind = Product()
    blind.model = MiniViT(num_layers=0)
    assert "Where it looked" not in page(blind, evaluated(2), facts)


def test_what_the_task_has_drawn_is_shown(facts: Facts) -> None:
    drawn = png.png(a_picture())
    shown = page(Product(), evaluated(0), facts, [("Mistakes", "3 of 4.", drawn)])
    assert f'src="{png.address(drawn)}" width="28" height="20" alt="Mistakes"' in shown
    assert '<h3>Mistakes</h3><p class="soft">3 of 4.</p>' in shown
