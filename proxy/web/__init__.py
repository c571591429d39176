"""The control routes and the page."""
