"""Kinds of models before real servers."""
