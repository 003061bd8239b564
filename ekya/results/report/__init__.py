"""Output for people: the screen, tables, figures and the HTML report."""
