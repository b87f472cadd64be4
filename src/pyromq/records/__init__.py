"""The commit-log record: its byte layout once; encode, decode, check and scan built on it. No IO."""
