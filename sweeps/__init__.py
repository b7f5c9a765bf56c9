"""Many runs: which ones, in which order, on which processes, and how each of them ended."""
