"""The story that `pyromq demo` tells: a sign-up before and after it had a queue, with real services and numbers."""
