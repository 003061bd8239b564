"""What each command does; ``ekya/cli.py`` has their options. Imported only when a command runs."""
