"""Recipes: what ships, and what a user's data change."""

import pytest

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
