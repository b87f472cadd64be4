"""The handlers of the broker's requests, a module for each subject."""
