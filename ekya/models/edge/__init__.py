"""Edge models: architectures, training, checkpoints and inference. The only training code."""
