"""The error a user can do something about."""


class UserError(Exception):
    """Bad input or a missing resource: one sentence that names file, key and remedy.

    The command line prints it as one line and exits with 2; it never comes with a traceback.
    """


class UnwellRunError(Exception):
    """A run came to its end, and most of its streams' windows were not well: one sentence that says why.

    The command line prints it as one line and exits with 3. Everything of the run is written by then.
    """
