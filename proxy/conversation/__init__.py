"""Conversations and their speakers: conversations, turns, and what is kept out of the store."""
