"""What was said: completions, conversations, requests."""
