"""Implementation of the commands; ``ekya/cli`` has their options. Imported only when a command runs."""
