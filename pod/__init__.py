"""Compiles a recipe's real steps for a TPU topology, without a TPU, and estimates their cost."""
