"""Work of a stream's workers, independent of the caller: an actor, or the emulated world."""
