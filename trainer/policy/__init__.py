"""The model that trains, in torch and in MLX."""
