"""Keys, roles and limits: what a request may do, how much of it, and which completions it reaches."""
