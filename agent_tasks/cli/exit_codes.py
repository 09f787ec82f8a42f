"""What the commands exit with."""

from __future__ import annotations

#: It worked.
OK = 0

#: Something failed that none of the others names.
FAILED = 1

#: The command line or a setting cannot be used; also what Click exits with.
USAGE = 2

#: No run or inbox item fits the id.
NOT_FOUND = 3

#: The state of the run, the inbox item or the schema does not allow it.
STATE = 4

#: The ledger's database did not answer (EX_UNAVAILABLE).
UNREACHABLE = 69
