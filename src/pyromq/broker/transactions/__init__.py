"""Transactions: messages that are invisible until their producer commits them.

A half message waits in a topic of the broker's own. It ends when its producer commits it (it is stored once more, in
its real topic) or rolls it back; each end leaves a record in a second topic. One that does not end is asked for.

- `ledger`: the open halves, and the decisions about them. Pure.
- `forms`: halves, ends and check-backs on the disk and on the wire. Pure.
- `journal`: the ledger, read from the store at the start and written to it from then on.
- `check_back`: asks producers what became of their transactions, from time to time.
"""
