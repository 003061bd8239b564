"""The trace world: replays recorded accuracies and costs, on virtual time."""
