"""`rlproxy eval`: versions compared on the user's own checks."""
