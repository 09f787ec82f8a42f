"""Django's side of the ledger's migrations: one for each revision that a release brings."""
