"""The store: SQLite, one writer with group commit, readers, the message tree.

Imports neither trainer nor proxy.
"""
