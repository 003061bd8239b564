"""Classes with a special meaning."""

BACKGROUND = "background"
"""A fleet's last class where its golden model detects objects itself: a crop without a relevant object.

No data set has boxes of this class.
"""
