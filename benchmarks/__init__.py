"""Measurements that `make bench` takes. None of them is a test: what they find depends on the machine."""
