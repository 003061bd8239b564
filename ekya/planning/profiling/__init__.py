"""Estimates what a γ would give, from short trainings, earlier windows and running retrainings."""
