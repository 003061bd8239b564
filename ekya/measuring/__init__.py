"""What a run was worth: accuracy, shares and counts, from the records of the run."""
