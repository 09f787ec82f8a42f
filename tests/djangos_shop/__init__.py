"""A Django app with one model, for the tests."""
