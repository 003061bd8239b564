#!/usr/bin/env python3
"""Checks a commit message: an imperative subject of at most 72 characters, and a body that says why.

Git calls it with the path of the message (`.pre-commit-config.yaml`, stage `commit-msg`).
"""

import sys
from pathlib import Path

MOST_CHARACTERS = 72
IMPERATIVES = {"bring", "embed", "exceed", "feed", "need", "ping", "proceed", "seed", "shed", "speed"}
"""Verbs that only look like a past tense or a gerund."""


def problems(message: str) -> list[str]:
    """Returns what is wrong with a message, a sentence each."""
    lines = [line.rstrip() for line in message.splitlines() if not line.startswith("#")]
    while lines and not lines[-1]:
        lines.pop()
    if not lines or not lines[0]:
        return ["the subject is missing"]
    subject, *rest = lines
    if subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! ")):
        return []
    found = []
    if len(subject) > MOST_CHARACTERS:
        found.append(f"the subject has {len(subject)} characters; at most {MOST_CHARACTERS}")
    verb = subject.split()[0]
    if not verb[0].isupper():
        found.append("the subject begins with a small letter")
    if verb.lower().endswith(("ed", "ing")) and verb.lower() not in IMPERATIVES:
        found.append(f"'{verb}' is not an imperative: write 'Add', not 'Added' or 'Adding'")
    if subject.endswith("."):
        found.append("the subject ends with a full stop")
    if rest and rest[0]:
        found.append("the second line is not empty")
    if not any(rest):
        found.append("the body is missing: say why the change is made")
    return found


def main() -> int:
    """Prints what is wrong with the message in a file; returns 1 if anything is."""
    path = Path(sys.argv[1])
    found = problems(path.read_text(encoding="utf-8"))
    for problem in found:
        sys.stderr.write(f"commit message: {problem}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
