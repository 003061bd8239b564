"""What a γ would give, estimated from short trainings, earlier windows and running retrainings."""
