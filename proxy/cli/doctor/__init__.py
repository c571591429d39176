"""`rlproxy doctor`: checks of a home, its proxy and this machine."""
