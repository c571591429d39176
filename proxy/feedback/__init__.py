"""Every way in which a rating arrives."""
