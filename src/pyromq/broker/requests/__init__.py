"""What the broker does with each kind of request, a module for each subject."""
