"""Edge models: what they are, how they are trained, stored and asked. The only training code."""
