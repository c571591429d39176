"""What every other package uses: errors, tasks, events, bytes on the wire."""
