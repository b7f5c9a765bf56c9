"""`digits`: UCI's optical digits as a data set of tfds, embedded here (see README.md)."""
