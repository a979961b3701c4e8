"""measure(), Meter, span(), log(), Run and load(): everywatt from Python."""
