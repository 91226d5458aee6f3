"""Recipes: what ships, and what a user's data change."""

from pathlib import Path

import pytest

from regard.errors import UsageError
from regard.training import recipe


@pytest.mark.parametrize("name", recipe.names())
def test_every_recipe_that_ships_is_whole(name: str) -> None:
    values = recipe.read(name)
    values = values if "data" in values else recipe.with_data(values, "pairs.tsv")
    resolved = recipe.resolve(values)
    assert recipe.resolve(resolved.as_mapping()) == resolved


def test_scores_measured_on_other_data_are_not_shown() -> None:
    values = recipe.read("letters-to-sounds")
    assert len(recipe.resolve(values).comparisons) == 2
    assert recipe.resolve(recipe.with_data(values, "mine.tsv")).comparisons == ()
    assert recipe.resolve(values, ["data.train=mine.tsv"]).comparisons == ()


def test_a_users_data_come_without_the_recipes_other_parts() -> None:
    values = {"task": "translate", "data": {"train": "a", "dev": "b", "extra": ["c"], "repeat": 3, "max_tokens": 9}}
    data = recipe.resolve(recipe.with_data(values, "mine.tsv")).settings.data
    assert (data.train, data.dev, data.extra, data.repeat, data.max_tokens) == ("mine.tsv", None, (), 1, 9)


def test_a_recipe_of_another_task_or_of_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("batch_tokens: 100\n")
    with pytest.raises(UsageError, match=r"own\.yaml: the recipe names no task; write task: lm$"):
        recipe.read_for("lm", str(path))
    path.write_text("task: mlm\n")
    with pytest.raises(UsageError, match=r"own\.yaml: the recipe is for the task 'mlm'$"):
        recipe.read_for("lm", str(path))
    assert recipe.read_for("mlm", str(path)) == {"task": "mlm"}
