"""The invariants of design §2, each as a pure function from a dossier to a verdict."""
