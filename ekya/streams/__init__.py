"""Sources of frames: live cameras, recorded video, labelled data sets and a synthetic city."""
