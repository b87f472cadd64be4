"""Backups of a store: made step by step, checked, restored to a directory that a broker starts on. No Spark in it.

manifest   what a backup holds: chunks of the log, small files, checksums
target     where it is: a directory, or anything else that keeps named bytes
planning   decides the pieces to copy or restore, each an independent unit of work (pure)
pieces     the work on one piece: copy, check, put back; every record verified
making     one more step of a backup of a directory; checking, restoring, pruning, listing: what else is done with it
live       steps of a backup of a running broker: its tables (broker_state), its log over the replication stream (line),
           checked and cut into chunks (arriving)
"""
