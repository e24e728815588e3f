"""Recipes: the data, what follows from it, one step as a pure function, and the text."""

from sandbox.recipe.recipe import Recipe

__all__ = ["Recipe"]
