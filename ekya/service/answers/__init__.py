"""Answers of a service on their way out: messages, their sinks, and the publisher that delivers them."""
