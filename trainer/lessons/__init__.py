"""What a run learns from: samples, teachers, and how much each token is pushed."""
