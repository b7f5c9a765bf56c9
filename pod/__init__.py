"""The pod without a pod: compile the real step for a TPU topology, and read it."""
