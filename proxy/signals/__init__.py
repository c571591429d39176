"""What happened after an answer, what it says about the answer, and how far that is trusted."""
