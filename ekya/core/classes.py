"""Classes that mean something of their own."""

BACKGROUND = "background"
"""A fleet's last class where its golden model finds objects itself: a crop that shows nothing that counts.

No data set draws a box around it.
"""
