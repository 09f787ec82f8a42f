"""What fits this package to other frameworks; each is an optional extra."""
