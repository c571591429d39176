"""`rlproxy import`: files of other programs, or of another home, sent to the running proxy."""
