"""Chat platforms that stand in for real ones, over real sockets."""
