"""`rlproxy init`: what is here, five questions, what will be written, and the proof that it works."""
