"""What a stream's workers do, without asking who runs them: an actor, or the emulated world."""
