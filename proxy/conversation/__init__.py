"""What was said by whom: conversations, turns, and what is kept out of the store."""
