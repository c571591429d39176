"""`rlproxy init`: what is here, six questions, what will be written, and the proof that it works."""
