"""REST API, live page and metrics of a service, over HTTP."""
