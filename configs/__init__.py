"""Recipes and clusters as data: ``recipes/*.yaml``, found by name after an install."""
