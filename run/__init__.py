"""A run: its processes, its files, and what it logs."""
