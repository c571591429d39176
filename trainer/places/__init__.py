"""Where a run trains."""
