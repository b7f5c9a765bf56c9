"""Many runs: which, in what order, by whom, and what became of them."""
