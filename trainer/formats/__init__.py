"""Files of adapters and weights: PEFT, MLX, GGUF."""
