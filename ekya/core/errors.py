"""Errors that the command line shows to the user without a traceback."""


class UserError(Exception):
    """Bad input or a missing resource: one sentence that names file, key and remedy.

    The command line prints it as one line and exits with 2.
    """


class FullDiskError(UserError):
    """The disk, or the quota of it, is full.

    ``ekya serve`` exits with another code than 2 then: another start may find room.
    """


class NotThereError(LookupError):
    """There is no camera of a name, or nothing of it that was asked for: one sentence.

    Other kinds of ``LookupError`` are faults of the code, which are not to be taken for it.
    """


class UnwellRunError(Exception):
    """A run ended, and did not do its job: unhealthy streams, or nothing adapted; one sentence says why.

    The command line prints it as one line and exits with 3. All files of the run have been written.
    """
