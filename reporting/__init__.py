"""Turns finished runs and MLPerf logs into statistics, tables, figures and verdicts.

Starts without JAX and without TensorFlow: numpy, scipy and (for figures only) matplotlib.
"""
