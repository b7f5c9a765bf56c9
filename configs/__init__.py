"""Recipes: one optimizer a file, one variant a published run or a small proxy of it."""
