"""The store by itself: what it takes in a second."""
