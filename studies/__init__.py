"""The small studies: what each consists of, and the commands that make it."""
