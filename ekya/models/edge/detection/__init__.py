"""Edge models that find objects as well as name them: networks, decoding, losses and fast inference."""
