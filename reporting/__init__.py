"""Reads finished runs and MLPerf logs; turns them into statistics, tables, figures and verdicts.

Starts without JAX and without TensorFlow: numpy, scipy and (for figures only) matplotlib.
"""
