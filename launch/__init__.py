"""Starts one command on every host of a pod or cluster, after a preflight check."""
