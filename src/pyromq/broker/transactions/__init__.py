"""Transactions: messages that nobody sees until their producer says so.

A half message waits in a topic of the broker's own. It ends when its producer commits it (it is stored once more, in
its real topic) or rolls it back; each end leaves a record in a second topic. One that does not end is asked for.

- `ledger`: which halves are open, what is to be done with them. Pure.
- `forms`: what halves, ends and questions look like on the disk and on the wire. Pure.
- `journal`: the ledger, read from the store at the start and written to it from then on.
- `check_back`: asks producers what became of their transactions, from time to time.
"""
