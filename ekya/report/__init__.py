"""What people look at: the screen, tables, figures and the HTML report."""
