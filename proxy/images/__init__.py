"""Pictures in prompts: which parts of a message they are, and what a process of its own finds in them."""
