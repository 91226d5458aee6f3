"""Recipes that come with regard: YAML files, each with the command, hardware, time and score in its head."""
