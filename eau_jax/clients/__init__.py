"""Everything that talks to a network or a subprocess."""
