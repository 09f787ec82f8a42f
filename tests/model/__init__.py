"""A short model of the protocol, and a checker that walks through every state of it."""
