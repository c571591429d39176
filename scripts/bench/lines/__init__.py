"""Eight lines on one base."""
