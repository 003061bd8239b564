"""Labelled data sets as cameras."""
