"""Calls between sites over HTTP: handles, the server of a site's objects, and the values that cross."""
