"""Reads MLPerf logs and applies MLPerf's rules and MLCommons' checkers to them."""
